"""The token-weights model: a weight per feature, so a sum of piecewise linear curves. The calibrated default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.curve import NS_PER_S, CurveModel, KvCurve, hinged_curve
from costmodel.features import QUANTITY_NAMES, Feature, attention_pairs, feature_values, quantity_row
from costmodel.graphs import GraphBuckets
from costmodel.shape import StepShape

KV_QUANTITY = QUANTITY_NAMES[-1]
ROWS, TOKENS, PAIRS = (QUANTITY_NAMES.index(name) for name in ("gemm_rows", "prefill_tokens", "prefill_pairs"))
"""The quantities that differ from one prefill step to the next; the others follow from how many take part."""
MEMO_ENTRIES = 65_536
"""So many values of a hinged quantity are remembered; it must not grow without end in a long run."""


@dataclass(frozen=True, slots=True)
class Term:
    """Seconds per unit of a feature, and what they are spent on."""

    feature: Feature
    s_per_unit: float
    part: str


@dataclass(frozen=True, slots=True)
class ValidRange:
    """What a fit has seen; beyond it a prediction is an extrapolation."""

    max_decode_requests: int
    max_prefill_tokens: int
    max_context_tokens: int
    max_decode_kv_tokens: int
    verification: bool
    """Whether verification was measured (else its weights are derived)."""

    def complaint(self, shape: StepShape) -> str | None:
        """What of the step lies outside, or None."""
        decodes = shape.decode_requests
        contexts = [context for _, context in (*shape.prefill, *shape.verify)]
        found = (
            ("decode requests", decodes, self.max_decode_requests),
            ("prefill tokens", shape.prefill_tokens, self.max_prefill_tokens),
            ("context tokens of a request", max(contexts, default=0), self.max_context_tokens),
            ("mean context tokens of decodes", shape.decode_context_tokens // max(1, decodes), self.max_context_tokens),
            ("KV tokens read by decodes", shape.decode_context_tokens + decodes, self.max_decode_kv_tokens),
        )
        beyond = [f"{value} {what} (fitted up to {limit})" for what, value, limit in found if value > limit]
        if shape.verify and not self.verification:
            beyond.append("verification (weights derived, not measured)")
        return ", ".join(beyond) or None


class HingeSum(dict[int, float]):
    """Seconds over one quantity by its hinges: sum of s_per_unit * max(0, value - past). Values are remembered."""

    def __init__(self, hinges: Sequence[tuple[int, float]]) -> None:
        super().__init__()
        self._hinges = tuple(hinges)

    def __missing__(self, value: int) -> float:
        seconds = sum(s_per_unit * (value - past) for past, s_per_unit in self._hinges if value > past)
        if len(self) < MEMO_ENTRIES:
            self[value] = seconds
        return seconds


class TokenWeightsModel(CurveModel):
    """Prices by a list of terms."""

    def __init__(
        self, terms: Sequence[Term], valid: ValidRange | None = None, buckets: GraphBuckets | None = None
    ) -> None:
        super().__init__(buckets)
        self._terms = tuple(terms)
        self._valid = valid
        hinges: list[list[tuple[int, float]]] = [[] for _ in QUANTITY_NAMES]
        for term in terms:
            if term.feature.quantity != KV_QUANTITY:
                place = QUANTITY_NAMES.index(term.feature.quantity)
                hinges[place].append((term.feature.past, term.s_per_unit))
        self._sums = [HingeSum(found) for found in hinges]
        self._pair_s = hinges[PAIRS][0][1] if _is_line(hinges[PAIRS]) else None
        self._fixed_places = [p for p, found in enumerate(hinges) if found and p not in (ROWS, TOKENS, PAIRS)]
        self._fixed_s: dict[tuple[int, int, int], float] = {}
        self._kv_terms = tuple(t for t in terms if t.feature.quantity == KV_QUANTITY)
        self._kv_curves: dict[int, KvCurve] = {}

    def price(self, shape: StepShape, padding_rows: int) -> KvCurve:
        decodes, chunks = shape.decode_requests, shape.prefill
        sums, pair_s = self._sums, self._pair_s
        if shape.verify:
            row = quantity_row(shape, padding_rows)
            base_s = sum(sums[place][row[place]] for place in range(len(row)))
        else:
            tokens = pairs = 0
            for chunk, context in chunks:
                tokens += chunk
                pairs += attention_pairs(chunk, context)
            base_s = self._fixed(shape, padding_rows)
            base_s += sums[ROWS][tokens + decodes + padding_rows] + sums[TOKENS][tokens]
            base_s += sums[PAIRS][pairs] if pair_s is None else pair_s * pairs
        kv_curve = self._kv_curves.get(decodes) or self._kv_curve(decodes)
        base_ns = base_s * NS_PER_S
        return tuple([(last, base_ns + kv_ns, slope) for last, kv_ns, slope in kv_curve])

    def _fixed(self, shape: StepShape, padding_rows: int) -> float:
        """The part that depends only on how many chunks and decodes there are. Remembered."""
        key = len(shape.prefill), shape.decode_requests, padding_rows
        seconds = self._fixed_s.get(key)
        if seconds is None:
            row = quantity_row(shape, padding_rows)
            seconds = sum([self._sums[place][row[place]] for place in self._fixed_places])
            if len(self._fixed_s) < MEMO_ENTRIES:
                self._fixed_s[key] = seconds
        return seconds

    def _kv_curve(self, decodes: int) -> KvCurve:
        """The part that KV reads cost; the knees depend on the number of decodes."""
        hinges = [(t.feature.past + t.feature.past_each * decodes, t.s_per_unit) for t in self._kv_terms]
        curve = self._kv_curves[decodes] = hinged_curve(sorted(hinges))
        return curve

    def price_parts(self, shape: StepShape, padding_rows: int) -> dict[str, float]:
        values = feature_values(shape, [t.feature for t in self._terms], padding_rows)
        parts: dict[str, float] = {}
        for term, value in zip(self._terms, values, strict=True):
            parts[term.part] = parts.get(term.part, 0.0) + term.s_per_unit * value
        return parts

    def out_of_range(self, shape: StepShape, /) -> str | None:
        return self._valid.complaint(shape) if self._valid else None


def _is_line(hinges: Sequence[tuple[int, float]]) -> bool:
    return len(hinges) == 1 and hinges[0][0] == 0
