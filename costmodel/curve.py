"""How a step's duration depends on the only thing that changes within a stretch: the KV entries that decodes read.

Every model here prices a shape as a piecewise linear function of those tokens. Steps of a stretch are then
`base + slope * tokens`, evaluated per element with exact integers for tokens: a Python float and a numpy one give the
same bits for + and *, so splitting a stretch changes nothing (FASTCORE.md, pitfall 13).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import numpy as np

from costmodel.graphs import GraphBuckets
from costmodel.shape import StepShape

NS_PER_S = 1e9
UNBOUNDED_TOKENS = 1 << 62
VECTOR_STEPS = 32
"""From this many steps on numpy is faster than a list comprehension."""

Segment = tuple[int, float, float]
"""(largest KV tokens it holds for, ns at zero tokens, ns per KV token)."""
KvCurve = tuple[Segment, ...]
"""Segments by ascending tokens; the last one is unbounded."""


def flat_curve(base_s: float) -> KvCurve:
    return ((UNBOUNDED_TOKENS, base_s * NS_PER_S, 0.0),)


def hinged_curve(hinges: Iterable[tuple[int, float]]) -> KvCurve:
    """For each (knee in tokens >= 0, seconds per token), by ascending knee: what lies beyond the knee."""
    base_ns = slope_ns = 0.0
    segments: list[Segment] = []
    for knee, s_per_token in hinges:
        if knee > 0:
            segments.append((knee, base_ns, slope_ns))
        base_ns -= s_per_token * NS_PER_S * knee
        slope_ns += s_per_token * NS_PER_S
    return (*segments, (UNBOUNDED_TOKENS, base_ns, slope_ns))


def curve_ns(curve: KvCurve, kv_tokens: int) -> float:
    """The curve's value, in nanoseconds before rounding."""
    for last, base, slope in curve:
        if kv_tokens <= last:
            return base + slope * kv_tokens
    raise AssertionError(f"{kv_tokens} KV tokens lie beyond the last segment")


def stretch_ns(curve: KvCurve, kv_tokens: int, growth: int, steps: int) -> list[int]:
    """Rounded values at kv_tokens, kv_tokens + growth, ...: `steps` of them."""
    if not growth:
        return [round(curve_ns(curve, kv_tokens))] * steps
    end = kv_tokens + growth * steps
    times: list[int] = []
    for last, base, slope in curve:
        if kv_tokens > last:
            continue
        inside = range(kv_tokens, min(end, last + 1), growth)
        if len(inside) < VECTOR_STEPS:
            times += [round(base + slope * tokens) for tokens in inside]
        else:
            tokens = np.arange(inside.start, inside.stop, growth, dtype=np.int64)
            times += np.rint(base + slope * tokens).astype(np.int64).tolist()
        kv_tokens += growth * len(inside)
        if kv_tokens >= end:
            break
    return times


class CurveModel(ABC):
    """A cost model that can say a step's `KvCurve`. Subclasses give prices; graphs, stretches and rounding are here."""

    def __init__(self, buckets: GraphBuckets | None) -> None:
        self._buckets = buckets
        self._decode_curves: dict[int, KvCurve] = {}

    @abstractmethod
    def price(self, shape: StepShape, padding_rows: int) -> KvCurve:
        """The step's duration over the KV entries that its decodes read. Must not look at `decode_context_tokens`."""

    def price_once_ns(self, shape: StepShape, kv_tokens: int) -> float:
        """`price` at one place, for steps that come once: a model may have it cheaper than as a curve."""
        return curve_ns(self.price(shape, 0), kv_tokens)

    @abstractmethod
    def price_parts(self, shape: StepShape, padding_rows: int) -> dict[str, float]:
        """Seconds by part."""

    def step_times_ns(self, shape: StepShape, steps: int, /) -> list[int]:
        decodes = shape.decode_requests
        kv_tokens = shape.decode_context_tokens + decodes
        if shape.prefill and steps == 1 and not shape.verify and self._buckets is None:
            return [round(self.price_once_ns(shape, kv_tokens))]
        curve = None if shape.prefill or shape.verify else self._decode_curves.get(decodes)
        if curve is None:
            curve = self._curve(shape)
        if steps == 1:
            last, base, slope = curve[0]
            return [round(base + slope * kv_tokens if kv_tokens <= last else curve_ns(curve, kv_tokens))]
        return stretch_ns(curve, kv_tokens, decodes, steps)

    def seconds(self, shape: StepShape, /) -> float:
        return curve_ns(self._curve(shape), shape.decode_context_tokens + shape.decode_requests) / NS_PER_S

    def parts(self, shape: StepShape, /) -> dict[str, float]:
        padding_rows, penalty_s = self._buckets.padding(shape) if self._buckets else (0, 0.0)
        parts = self.price_parts(shape, padding_rows)
        return {**parts, "eager_launches": penalty_s} if penalty_s else parts

    def out_of_range(self, shape: StepShape, /) -> str | None:
        return None

    def _curve(self, shape: StepShape) -> KvCurve:
        padding_rows, penalty_s = self._buckets.padding(shape) if self._buckets else (0, 0.0)
        curve = self.price(shape, padding_rows)
        if penalty_s:
            curve = tuple((last, base + penalty_s * NS_PER_S, slope) for last, base, slope in curve)
        if not (shape.prefill or shape.verify):
            self._decode_curves[shape.decode_requests] = curve
        return curve
