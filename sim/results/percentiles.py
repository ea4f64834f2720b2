"""Percentiles by linear interpolation, the same for plain values, counted values and samples with infinite members."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sim.results.arrays import CHUNK, FloatArray, IntArray

NUM_BUCKETS = 1 << 16

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
        weighted = self.values if self.counts is None else self.values * self.counts
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
        ranks = [percent / 100 * (self.n - 1) for percent in percents]
        wanted = sorted({whole for rank in ranks for whole in (math.floor(rank), math.ceil(rank))})
        members = dict(zip(wanted, self._members(wanted), strict=True))
        return [_between(members[math.floor(rank)], members[math.ceil(rank)], rank % 1) for rank in ranks]

    def _members(self, ranks: list[int]) -> list[float]:
        """The members at these places in ascending order; the infinite ones come last."""
        finite = [rank for rank in ranks if rank < self._finite()]
        found = self._by_partition(finite) if self.counts is None else self._by_buckets(self.counts, finite)
        return found + [math.inf] * (len(ranks) - len(finite))

    def _by_partition(self, ranks: list[int]) -> list[float]:
        if not ranks:
            return []
        parted = np.partition(self.values, ranks)
        return [float(parted[rank]) for rank in ranks]

    def _by_buckets(self, counts: IntArray, ranks: list[int]) -> list[float]:
        """Sort only the buckets that a rank falls into: sorting millions of gaps would take most of a report's time."""
        if not ranks:
            return []
        buckets = np.zeros(NUM_BUCKETS + 1, np.int64)
        for values, bucket, at in self._in_buckets():
            np.add.at(buckets, bucket, counts[at : at + len(values)])
        upto = np.cumsum(buckets, out=buckets)
        places = {rank: int(np.searchsorted(upto, rank, side="right")) for rank in ranks}
        members = self._of_buckets(counts, sorted(set(places.values())))
        found = []
        for rank, place in places.items():
            values, each = members[place]
            order = np.argsort(values)
            last = upto[place] - each.sum() + np.cumsum(each[order])
            found.append(float(values[order][np.searchsorted(last, rank, side="right")]))
        return found

    def _in_buckets(self) -> Iterator[tuple[FloatArray, IntArray, int]]:
        """Some values at a time, for the memory's sake: (values, bucket of each, place of the first)."""
        low, high = float(self.values.min()), float(self.values.max())
        per_value = NUM_BUCKETS / (high - low or 1.0)
        for at in range(0, len(self.values), CHUNK):
            values = self.values[at : at + CHUNK]
            yield values, ((values - low) * per_value).astype(np.int64), at

    def _of_buckets(self, counts: IntArray, places: list[int]) -> dict[int, tuple[FloatArray, IntArray]]:
        """What is in these buckets: values and how often each occurs."""
        found: dict[int, list[tuple[FloatArray, IntArray]]] = {place: [] for place in places}
        for values, bucket, at in self._in_buckets():
            for place in places:
                inside = np.flatnonzero(bucket == place)
                found[place].append((values[inside], counts[at + inside]))
        return {
            place: (np.concatenate([values for values, _ in parts]), np.concatenate([each for _, each in parts]))
            for place, parts in found.items()
        }


def _between(low: float, high: float, share: float) -> float:
    """numpy's own form of interpolation, so that results are equal and not just close."""
    if math.isinf(high) or low == high:
        return high
    return low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)


def enough_for(percent: float, n: int) -> bool:
    """Whether a sample of n says something about this percentile (see BEYOND_FOR_A_PERCENTILE)."""
    return n * (100 - percent) >= 100 * BEYOND_FOR_A_PERCENTILE
