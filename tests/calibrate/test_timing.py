"""How samples are taken: on a clock that only moves when something runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle, repeat

import pytest

from calibrate.timing import LARGEST_BLOCK, CpuClock, Effort, Run, raw_samples


@dataclass
class FakeClock:
    """Every execution takes the next of `seconds`."""

    seconds: Iterator[float]
    timer_overhead_s: float = 1e-7
    blocks: list[int] = field(default_factory=list)
    flushes: int = 0

    def block_seconds(self, run: Run, times: int, /) -> float:
        self.blocks.append(times)
        return sum(next(self.seconds) for _ in range(times))

    def flush(self) -> None:
        self.flushes += 1


def nothing() -> None:
    """Never executed: the fake clock knows how long it takes."""


def samples(clock: FakeClock, effort: Effort | None = None, *, cold: bool = False) -> tuple[float, ...]:
    return raw_samples(nothing, clock, effort or Effort(), cold=cold)


def test_a_steady_task_stops_at_the_fewest_samples_and_warm_up_is_not_one() -> None:
    clock = FakeClock(iter([9.0, *repeat(0.01, 100)]))
    assert samples(clock, Effort(warm_up_s=10)) == pytest.approx([0.01] * 5)
    assert clock.blocks == [1] * 8


def test_a_noisy_task_is_timed_until_its_median_is_sure_or_the_samples_run_out() -> None:
    assert len(samples(FakeClock(cycle([0.010, 0.012])))) == 25
    assert len(samples(FakeClock(cycle([0.010, 0.0102])))) in range(6, 25)


def test_time_ends_a_long_task() -> None:
    slow = FakeClock(cycle([0.3, 0.5]))
    assert len(samples(slow, Effort(max_s=1.0))) == 5
    assert len(samples(FakeClock(repeat(2.0)), Effort(hopeless_s=3.0))) == 2
    assert len(samples(FakeClock(repeat(9.0)), Effort(hopeless_s=3.0))) == 1


def test_blocks_are_long_enough_for_the_clock() -> None:
    """Reading the clock costs 0.1 us, so a block of something that takes 10 us has 100 executions: 0.01 %."""
    clock = FakeClock(repeat(1e-5))
    assert samples(clock) == pytest.approx([1e-5] * 5)
    assert clock.blocks[-1] == 100
    capped = FakeClock(repeat(1e-9))
    samples(capped)
    assert capped.blocks[-1] == LARGEST_BLOCK


def test_a_cold_task_is_flushed_before_every_sample() -> None:
    clock = FakeClock(repeat(1e-5))
    assert len(samples(clock, cold=True)) == clock.flushes == 5
    assert set(clock.blocks) == {1}


def test_the_cpu_clock_measures_what_passes_and_cpu_time_what_is_used() -> None:
    wall, cpu = CpuClock(), CpuClock(time.process_time_ns)
    assert 0 < wall.timer_overhead_s < 1e-4
    assert wall.block_seconds(lambda: time.sleep(0.01), 2) >= 0.02
    assert cpu.block_seconds(lambda: time.sleep(0.05), 1) < 0.04
    cpu.flush()
