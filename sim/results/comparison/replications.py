"""How sure a difference is: paired over replications, with Student's t. Single requests are never replications."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95

SMALL_RATIO = 0.05
"""Up to here a difference is none to act upon: an interval around 0 that stays inside shows that there is none."""

METHOD = "95 % by Student's t over paired differences, in percent of A's mean"


@dataclass(frozen=True, slots=True)
class Difference:
    """Of B from A in one metric: means, and their difference as a ratio of A's mean (0.079 = +7.9 %)."""

    base: float
    value: float
    n: int
    """Replications; 1 = a single run, which has no interval."""
    ratio: float | None
    """None: A's mean is 0."""
    low: float | None = None
    high: float | None = None

    @property
    def shown(self) -> bool | None:
        """Whether there is a difference; None where there is no interval to tell by."""
        if self.low is None or self.high is None:
            return None
        return not self.low <= 0 <= self.high

    @property
    def small(self) -> bool:
        """Whether all of the interval is too near to 0 to matter."""
        return self.low is not None and self.high is not None and max(-self.low, self.high) <= SMALL_RATIO


def difference(base: Sequence[float | None], value: Sequence[float | None]) -> Difference | None:
    """Replication by replication: `base[i]` and `value[i]` met the same requests. None if one of them has no value."""
    a, b = ([each for each in values if each is not None] for values in (base, value))
    if not a or len(a) != len(base) or len(b) != len(value) or len(a) != len(b):
        return None
    mean_a, mean_b = math.fsum(a) / len(a), math.fsum(b) / len(b)
    if mean_a == 0:
        return Difference(mean_a, mean_b, len(a), 0.0 if mean_b == 0 else None)
    ratio = (mean_b - mean_a) / abs(mean_a)
    if len(a) == 1:
        return Difference(mean_a, mean_b, 1, ratio)
    half = half_width([y - x for x, y in zip(a, b, strict=True)]) / abs(mean_a)
    return Difference(mean_a, mean_b, len(a), ratio, ratio - half, ratio + half)


def half_width(values: Sequence[float]) -> float:
    """Half of the interval of the mean of two values or more."""
    from scipy.special import stdtrit

    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * error
