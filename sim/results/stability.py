"""Whether a run has a steady state: does the backlog grow as long as requests arrive?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.results.arrays import IntArray

THRESHOLD_RATIO = 2.0
"""More waiting in the second half than so many times the first half's is a trend."""

FLOOR_REQUESTS = 4.0
"""And it must be more than so many waiting requests: 0.01 against 0.03 is none."""

MIN_ARRIVALS = 20
"""Fewer say nothing about a trend."""


@dataclass(frozen=True, slots=True)
class Trend:
    """Waiting requests seen by arrivals, on average, in the halves of the time from first to last arrival."""

    first_half: float
    second_half: float
    unstable: bool
    enough: bool
    """Whether there were arrivals enough to tell."""


def trend(arrival_ns: IntArray, waiting_seen: IntArray) -> Trend:
    """Unstable: threshold and floor are passed in *both* later quarters of the time in which requests arrive.

    A burst at the end fills the last quarter only, a passing one is gone by then, and a trace that arrives at once has
    no quarters: none of these is a trend.
    """
    if len(arrival_ns) == 0:
        return Trend(0.0, 0.0, unstable=False, enough=False)
    span_ns = int(arrival_ns[-1] - arrival_ns[0])
    quarter = np.minimum(4 * (arrival_ns - arrival_ns[0]) // max(1, span_ns), 3)
    count = np.bincount(quarter, minlength=4)
    seen = np.bincount(quarter, weights=waiting_seen, minlength=4)
    means = seen / np.maximum(1, count)
    first, second = (float(seen[half].sum() / max(1, count[half].sum())) for half in (slice(0, 2), slice(2, 4)))
    limit = max(THRESHOLD_RATIO * first, FLOOR_REQUESTS)
    enough = len(arrival_ns) >= MIN_ARRIVALS and span_ns > 0
    return Trend(first, second, unstable=bool(enough and (means[2:] > limit).all()), enough=enough)
