"""Percentiles by linear interpolation, the same for plain values, counted values and samples with infinite members."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sim.results.arrays import FloatArray, IntArray

BEYOND_FOR_A_PERCENTILE = 10
"""A percentile is printed plainly only if so many of the sample are expected beyond it: P99 from 1,000."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Values of one quantity, each `counts[i]` times (None: once), and `infinite` members that have no finite value."""

    values: FloatArray
    counts: IntArray | None = None
    infinite: int = 0

    @property
    def n(self) -> int:
        return self._finite() + self.infinite

    def _finite(self) -> int:
        return len(self.values) if self.counts is None else int(self.counts.sum())

    def total(self) -> float:
        if self.infinite:
            return math.inf
        weighted = self.values if self.counts is None else self.values * self.counts.astype(np.float64)
        return float(weighted.sum(dtype=np.float64))

    def mean(self) -> float:
        return self.total() / self.n

    def std(self) -> float:
        """Of the population, as `vllm bench serve` has it."""
        deviation = Sample((self.values - self.mean()) ** 2, self.counts)
        return math.sqrt(deviation.mean())

    def max(self) -> float:
        return math.inf if self.infinite else float(self.values.max())

    def percentiles(self, percents: tuple[float, ...]) -> list[float]:
        """Equal to numpy.percentile of the values written out one by one; infinite where it reaches an infinite one."""
        values, last = self._sorted()
        return [_at_rank(values, last, percent / 100 * (self.n - 1)) for percent in percents]

    def _sorted(self) -> tuple[FloatArray, IntArray | None]:
        """Values in order, and for each the number of members up to it (None: its place)."""
        if self.counts is None:
            return np.sort(self.values), None
        order = np.argsort(self.values)
        return self.values[order], np.cumsum(self.counts[order])


def _at_rank(values: FloatArray, last: IntArray | None, rank: float) -> float:
    below = math.floor(rank)
    share = rank - below
    low = _member(values, last, below)
    high = _member(values, last, below + 1) if share else low
    if math.isinf(high):
        return high
    # numpy's own form, so that results are equal and not just close
    return low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)


def _member(values: FloatArray, last: IntArray | None, index: int) -> float:
    place = index if last is None else int(np.searchsorted(last, index, side="right"))
    return float(values[place]) if place < len(values) else math.inf


def enough_for(percent: float, n: int) -> bool:
    """Whether a sample of n says something about this percentile (see BEYOND_FOR_A_PERCENTILE)."""
    return n * (100 - percent) >= 100 * BEYOND_FOR_A_PERCENTILE
