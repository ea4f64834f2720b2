"""The token-weights model: a weight per feature, so a sum of piecewise linear curves. The calibrated default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from costmodel.curve import CurveModel, KvCurve, hinged_curve
from costmodel.features import QUANTITY_NAMES, Feature, feature_values, quantities
from costmodel.graphs import GraphBuckets
from costmodel.shape import StepShape

KV_QUANTITY = QUANTITY_NAMES[-1]
MEMO_ENTRIES = 65_536
"""Curves of small integers remember their values up to here; pair counts and the like would fill the memory."""


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
    """Seconds over one quantity: sum of s_per_unit * max(0, value - past). Values of small integers are remembered."""

    def __init__(self, hinges: Sequence[tuple[int, float]]) -> None:
        super().__init__()
        self._hinges = tuple(hinges)

    def __missing__(self, value: int) -> float:
        seconds = 0.0
        for past, s_per_unit in self._hinges:
            if value > past:
                seconds += s_per_unit * (value - past)
        if value < MEMO_ENTRIES:
            self[value] = seconds
        return seconds


class TokenWeightsModel(CurveModel):
    """Prices by a list of terms; the order of the terms is the order of the sum."""

    def __init__(
        self, terms: Sequence[Term], valid: ValidRange | None = None, buckets: GraphBuckets | None = None
    ) -> None:
        super().__init__(buckets)
        self._terms = tuple(terms)
        self._valid = valid
        self._fixed: list[tuple[int, Callable[[int], float]]] = []
        for place, name in enumerate(QUANTITY_NAMES[:-1]):
            hinges = [(t.feature.past, t.s_per_unit) for t in terms if t.feature.quantity == name]
            if hinges:
                self._fixed.append((place, HingeSum(hinges).__getitem__))
        self._kv_terms = tuple(t for t in terms if t.feature.quantity == KV_QUANTITY)

    def price(self, shape: StepShape) -> KvCurve:
        measured = quantities(shape)
        base_s = 0.0
        for place, seconds_of in self._fixed:
            base_s += seconds_of(measured[place])
        decodes = shape.decode_requests
        hinges = [
            (t.feature.past + t.feature.past_each * decodes, t.s_per_unit) for t in self._kv_terms if decodes
        ]
        return hinged_curve(base_s, sorted(hinges))

    def price_parts(self, shape: StepShape) -> dict[str, float]:
        values = feature_values(shape, [t.feature for t in self._terms])
        parts: dict[str, float] = {}
        for term, value in zip(self._terms, values, strict=True):
            parts[term.part] = parts.get(term.part, 0.0) + term.s_per_unit * value
        return parts

    def out_of_range(self, shape: StepShape, /) -> str | None:
        return self._valid.complaint(shape) if self._valid else None
