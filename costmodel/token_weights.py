"""The token-weights model: a weight per feature, so a sum of piecewise linear curves. The calibrated default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.curve import NS_PER_S, CurveModel, KvCurve, hinged_curve
from costmodel.features import (
    KV_QUANTITIES,
    QUANTITY_NAMES,
    Feature,
    feature_values,
    quantity_row,
)
from costmodel.graphs import GraphBuckets
from costmodel.shape import StepShape

ROWS, TOKENS, PAIRS, HIDDEN_PAIRS, CHUNK_KV = (
    QUANTITY_NAMES.index(name)
    for name in ("gemm_rows", "prefill_tokens", "prefill_pairs", "prefill_hidden_pairs", "prefill_kv_tokens")
)
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
        seconds = 0.0
        for past, s_per_unit in self._hinges:
            if value > past:
                seconds += s_per_unit * (value - past)
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
            if term.feature.quantity not in KV_QUANTITIES:
                place = QUANTITY_NAMES.index(term.feature.quantity)
                hinges[place].append((term.feature.past, term.s_per_unit))
        self._sums = [HingeSum(found) for found in hinges]
        self._looks_into_chunks = bool(hinges[HIDDEN_PAIRS] or hinges[CHUNK_KV])
        """Then a step with chunks is priced from all its quantities: no part of it is the same in the next one."""
        self._lines = _slope(hinges[TOKENS]), _slope(hinges[PAIRS])
        """Seconds per prefill token and pair, where that is all there is to them: nothing to remember."""
        self._fixed_places = [p for p, found in enumerate(hinges) if found and p not in (ROWS, TOKENS, PAIRS)]
        self._fixed_s: dict[tuple[int, int, int], float] = {}
        self._kv_terms = tuple(t for t in terms if t.feature.quantity in KV_QUANTITIES)
        self._kv_curves: tuple[dict[int, KvCurve], dict[int, KvCurve]] = ({}, {})
        """By number of decodes: alone, and beside a prefill chunk."""

    def price(self, shape: StepShape, padding_rows: int) -> KvCurve:
        base_ns = self._base_ns(shape, padding_rows)
        return tuple([(last, base_ns + kv_ns, slope) for last, kv_ns, slope in self._kv_curve(shape)])

    def price_once_ns(self, shape: StepShape, kv_tokens: int) -> float:
        base_ns = self._base_ns(shape, 0)
        for last, kv_ns, slope in self._kv_curve(shape):
            if kv_tokens <= last:
                return base_ns + kv_ns + slope * kv_tokens
        raise AssertionError(f"{kv_tokens} KV tokens lie beyond the last segment")

    def _base_ns(self, shape: StepShape, padding_rows: int) -> float:
        """All but the KV that decodes read."""
        decodes, chunks = shape.decode_requests, shape.prefill
        sums = self._sums
        if shape.verify or (chunks and self._looks_into_chunks):
            row = quantity_row(shape, padding_rows)
            base_s = sum(sums[place][row[place]] for place in range(len(row)))
        else:
            tokens = pairs = 0
            for chunk, context in chunks:
                tokens += chunk
                pairs += chunk * context + chunk * (chunk + 1) // 2
            base_s = self._fixed_s.get((len(chunks), decodes, padding_rows)) or self._fixed(shape, padding_rows)
            token_s, pair_s = self._lines
            base_s += sums[ROWS][tokens + decodes + padding_rows]
            base_s += sums[TOKENS][tokens] if token_s is None else token_s * tokens
            base_s += sums[PAIRS][pairs] if pair_s is None else pair_s * pairs
        return base_s * NS_PER_S

    def _fixed(self, shape: StepShape, padding_rows: int) -> float:
        """The part that depends only on how many chunks and decodes there are. Remembered."""
        row = quantity_row(shape, padding_rows)
        seconds = sum([self._sums[place][row[place]] for place in self._fixed_places])
        if len(self._fixed_s) < MEMO_ENTRIES:
            self._fixed_s[len(shape.prefill), shape.decode_requests, padding_rows] = seconds
        return seconds

    def _kv_curve(self, shape: StepShape) -> KvCurve:
        """The part that KV reads cost; the knees depend on the number of decodes. Remembered."""
        decodes, mixed = shape.decode_requests, bool(shape.prefill)
        curve = self._kv_curves[mixed].get(decodes)
        return self._make_kv_curve(decodes, mixed) if curve is None else curve

    def _make_kv_curve(self, decodes: int, mixed: bool) -> KvCurve:
        hinges = [
            (t.feature.past + t.feature.past_each * decodes, t.s_per_unit)
            for t in self._kv_terms
            if mixed or t.feature.quantity == "decode_kv_tokens"
        ]
        curve = self._kv_curves[mixed][decodes] = hinged_curve(sorted(hinges))
        return curve

    def price_parts(self, shape: StepShape, padding_rows: int) -> dict[str, float]:
        values = feature_values(shape, [t.feature for t in self._terms], padding_rows)
        parts: dict[str, float] = {}
        for term, value in zip(self._terms, values, strict=True):
            parts[term.part] = parts.get(term.part, 0.0) + term.s_per_unit * value
        return parts

    def out_of_range(self, shape: StepShape, /) -> str | None:
        return self._valid.complaint(shape) if self._valid else None


def _slope(hinges: Sequence[tuple[int, float]]) -> float | None:
    """Seconds per unit if the sum is a line through nothing; None if it has a knee."""
    return None if any(past for past, _ in hinges) else sum(s_per_unit for _, s_per_unit in hinges)
