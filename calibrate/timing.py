"""How long something takes, as raw samples: warm up, time blocks long enough for the clock, stop when sure enough.

After torch.utils.benchmark's `adaptive_autorange` and pyperf. What a clock reads is the platform's affair (`Clock`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

Run = Callable[[], object]

TIMER_SHARE = 1e-4
"""A block is at least so long that reading the clock twice is this share of it."""
LARGEST_BLOCK = 1024
NS_PER_S = 1e9
MEDIAN_INTERVAL = 1.57
"""Half width of a median's 95 % interval in IQR / sqrt(samples) (McGill, Tukey and Larsen 1978)."""


class Clock(Protocol):
    """Times a block of executions on a device."""

    timer_overhead_s: float

    def block_seconds(self, run: Run, times: int, /) -> float:
        """Seconds from before the first to after the last of `times` executions; waits for all of them."""

    def flush(self) -> None:
        """Push what the caches hold out of them."""


@dataclass(frozen=True, slots=True)
class Effort:
    """When to stop timing one task. Seconds are those of the clock that times it."""

    warm_up_runs: int = 3
    warm_up_s: float = 0.1
    """After this no further warm-up run is begun."""
    min_samples: int = 5
    max_samples: int = 25
    max_s: float = 0.5
    """After this only what `min_samples` asks for is still timed."""
    hopeless_s: float = 4.0
    """After this not even that."""
    median_ratio: float = 0.01
    """Sure enough: half the 95 % interval of the median, over the median."""


def raw_samples(run: Run, clock: Clock, effort: Effort, *, cold: bool) -> tuple[float, ...]:
    """Seconds per execution. `cold`: caches are flushed before each, which leaves blocks of one."""
    estimate_s = _warm_up(run, clock, effort)
    times = 1 if cold else _block(estimate_s, clock.timer_overhead_s)
    samples: list[float] = []
    while not _enough(samples, sum(samples) * times, effort):
        if cold:
            clock.flush()
        samples.append(clock.block_seconds(run, times) / times)
    return tuple(samples)


def _warm_up(run: Run, clock: Clock, effort: Effort) -> float:
    """Seconds of the fastest of the first runs, which are not samples."""
    seconds = [clock.block_seconds(run, 1)]
    while len(seconds) < effort.warm_up_runs and sum(seconds) < effort.warm_up_s:
        seconds.append(clock.block_seconds(run, 1))
    return min(seconds)


def _block(estimate_s: float, overhead_s: float) -> int:
    return min(LARGEST_BLOCK, max(1, round(overhead_s / TIMER_SHARE / max(estimate_s, 1e-9))))


def _enough(samples: list[float], timed_s: float, effort: Effort) -> bool:
    if len(samples) < effort.min_samples:
        return bool(samples) and timed_s >= effort.hopeless_s
    if len(samples) >= effort.max_samples or timed_s >= effort.max_s:
        return True
    low, median, high = np.percentile(samples, (25, 50, 75))
    half_width = MEDIAN_INTERVAL * (high - low) / len(samples) ** 0.5
    return bool(half_width <= effort.median_ratio * median)


class CpuClock:
    """A clock of the system. Flushing writes more than a core's own caches hold; a server's shared L3 may keep more."""

    FLUSHED_BYTES = 64 << 20

    def __init__(self, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now_ns = now_ns
        self._ballast = np.zeros(self.FLUSHED_BYTES // 8, dtype=np.int64)
        self.timer_overhead_s = min(self.block_seconds(_nothing, 1) for _ in range(1000))

    def block_seconds(self, run: Run, times: int, /) -> float:
        started_ns = self._now_ns()
        for _ in range(times):
            run()
        return (self._now_ns() - started_ns) / NS_PER_S

    def flush(self) -> None:
        self._ballast += 1


def _nothing() -> None:
    """What is left when nothing is timed."""
