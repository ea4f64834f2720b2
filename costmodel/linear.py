"""The linear model, a_s + b_s_per_token * tokens of the step: for cases and teaching."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.curve import CurveModel, KvCurve, flat_curve
from costmodel.graphs import GraphBuckets
from costmodel.shape import StepShape


@dataclass(frozen=True, slots=True)
class Line:
    a_s: float
    b_s_per_token: float


class LinearModel(CurveModel):
    """Context costs nothing. Steps with a prefill chunk may have their own line (cases A7, F7)."""

    def __init__(self, line: Line, prefill_line: Line | None = None, buckets: GraphBuckets | None = None) -> None:
        super().__init__(buckets)
        self._line = line
        self._prefill_line = prefill_line or line

    def price(self, shape: StepShape, padding_rows: int) -> KvCurve:
        line = self._prefill_line if shape.prefill else self._line
        return flat_curve(line.a_s + line.b_s_per_token * (shape.tokens + padding_rows))

    def price_parts(self, shape: StepShape, padding_rows: int) -> dict[str, float]:
        line = self._prefill_line if shape.prefill else self._line
        return {"step": line.a_s, "tokens": line.b_s_per_token * (shape.tokens + padding_rows)}
