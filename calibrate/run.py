"""The loop of a run: next case, time it, write it down, until the minutes are over; and what came of it, as text."""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from calibrate.records import Measurement, Outcome, SamplesWriter
from calibrate.tasks import TASK_FIELDS, TaskSpec
from calibrate.timing import Effort

PROGRESS_EVERY_S = 5.0
NOISY_RATIO = 0.1
"""Samples of one task spread by more than this: something else is using the machine."""
LONGEST_REASON = 200
FAILURES_IN_A_ROW = 10
"""A device that has broken down fails every task: the run ends, with the reason."""


class DeviceBroke(ValueError):
    """Every task fails."""


class Bench(Protocol):
    """What times a task."""

    def samples(self, task: TaskSpec, effort: Effort, /) -> tuple[float, ...]:
        """Raw seconds. Raises MemoryError or RuntimeError if it cannot be run."""

    def is_out_of_memory(self, error: BaseException, /) -> bool: ...

    def release(self) -> None:
        """Called after a failed task."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Wall-clock time of the whole run, what earlier attempts at it used included."""

    total_s: float
    started_s: float
    """On the monotonic clock."""

    def effort(self) -> Effort:
        """A short run gives every task less, so that it still meets all kinds in all sizes."""
        return Effort(max_s=min(1.0, max(0.1, self.total_s / 600)), hopeless_s=min(3.0, max(0.5, self.total_s / 120)))

    def spent_s(self) -> float:
        return time.monotonic() - self.started_s


def run_cases(bench: Bench, writer: SamplesWriter, cases: Iterable[TaskSpec], budget: Budget) -> list[Measurement]:
    """Measure what the file does not have yet, until the time is over. Returns all that the file now holds.

    However short the time, a new file gets one measurement. What failed earlier is tried again.
    """
    done = list(writer.found)
    present = Counter(measurement.task.key for measurement in done if measurement.outcome != "failed")
    failures = 0
    earlier_s = sum(measurement.spent_s for measurement in done)
    effort = budget.effort()
    progress = Progress(budget.total_s, earlier_s)
    for task in cases:
        if done and earlier_s + budget.spent_s() >= budget.total_s:
            break
        if present[task.key]:
            present[task.key] -= 1
            continue
        measurement = measure(bench, task, effort)
        writer.append(measurement)
        done.append(measurement)
        progress.show(done, earlier_s + budget.spent_s())
        failures = failures + 1 if measurement.outcome == "failed" else 0
        if failures == FAILURES_IN_A_ROW:
            raise DeviceBroke(
                f"the last {failures} tasks failed, the last one ({in_words(task)}): {measurement.reason}"
            )
    return done


def measure(bench: Bench, task: TaskSpec, effort: Effort) -> Measurement:
    """Time one task. What cannot be run is an outcome, not an error: the run goes on."""
    started_s = time.monotonic()
    try:
        seconds = bench.samples(task, effort)
    except (MemoryError, RuntimeError) as error:
        outcome: Outcome = "oom" if bench.is_out_of_memory(error) else "failed"
        reason = " ".join(str(error).split())[:LONGEST_REASON]
    else:
        return Measurement(task, seconds, spent_s=time.monotonic() - started_s)
    # here the traceback is gone, and with it what the task had allocated
    bench.release()
    return Measurement(task, (), outcome, reason, time.monotonic() - started_s)


class Progress:
    """A line on stderr every few seconds."""

    def __init__(self, total_s: float, earlier_s: float) -> None:
        self._total_s = total_s
        self._shown_s = earlier_s

    def show(self, done: Sequence[Measurement], spent_s: float) -> None:
        if spent_s - self._shown_s < PROGRESS_EVERY_S:
            return
        self._shown_s = spent_s
        last = done[-1]
        result = f"{last.median_s * 1e3:.3f} ms" if last.seconds else last.outcome
        print(
            f"{minutes_text(spent_s)} of {minutes_text(self._total_s)}: {len(done)} tasks,"
            f" last {in_words(last.task)}: {result}",
            file=sys.stderr,
        )


def minutes_text(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def in_words(task: TaskSpec) -> str:
    """One line about a task, for people."""
    if task.kind != "step":
        sizes = ((name, getattr(task, name)) for name in TASK_FIELDS[task.kind])
        return " ".join([task.kind, *(f"{name} {_size(value)}" for name, value in sizes)])
    parts = [f"chunk of {tokens} behind {context}" for tokens, context in task.prefill]
    if task.decode:
        parts.append(f"{len(task.decode)} decodes at {sum(task.decode) // len(task.decode)}")
    if task.verify:
        contexts = [context for _, context in task.verify]
        parts.append(f"{len(contexts)} verifications of {task.verify[0][0]} at {sum(contexts) // len(contexts)}")
    return "step: " + " + ".join(parts)


def _size(value: object) -> str:
    return f"{len(value)} of mean {sum(value) // len(value)}" if isinstance(value, tuple) else str(value)


def summary(done: Sequence[Measurement]) -> str:
    """The result of a run: per kind of task how many, how noisy, and how far repeats lie from the first time."""
    width = max(map(len, TASK_FIELDS))
    lines = [f"{'kind':<{width}}  tasks  ok   oom  failed  samples  noise (median IQR / median)"]
    for kind in TASK_FIELDS:
        mine = [m for m in done if m.task.kind == kind]
        if mine:
            outcomes = Counter(m.outcome for m in mine)
            samples = sum(len(m.seconds) for m in mine)
            lines.append(
                f"{kind:<{width}}  {len(mine):>5}  {outcomes['ok']:<4} {outcomes['oom']:<4} {outcomes['failed']:<6}"
                f"  {samples:>7}  {_percent(noise_ratio(mine))}"
            )
    changes = repeat_changes(done)
    if changes:
        lines.append(
            f"repeats of {len(changes)} steps later in the run: median change {_percent(statistics.median(changes))},"
            f" largest {_percent(max(changes))}"
        )
    return "\n".join(lines)


def noise_ratio(done: Iterable[Measurement]) -> float | None:
    ratios = [m.noise_ratio for m in done if len(m.seconds) > 1]
    return statistics.median(ratios) if ratios else None


def repeat_changes(done: Iterable[Measurement]) -> list[float]:
    """Of every task that was timed again: |last median / first median - 1|."""
    medians: dict[str, list[float]] = {}
    for measurement in done:
        if measurement.seconds:
            medians.setdefault(measurement.task.key, []).append(measurement.median_s)
    steps = (values for key, values in medians.items() if key.startswith('{"kind":"step"') and len(values) > 1)
    return [abs(values[-1] / values[0] - 1) for values in steps]


def noise_warning(done: Sequence[Measurement], next_command: str) -> str | None:
    """What to do about samples that spread too far; None if they do not."""
    ratio = noise_ratio(m for m in done if m.task.kind == "step")
    if ratio is None or ratio <= NOISY_RATIO:
        return None
    return (
        f"warning: samples of one step spread by {ratio:.0%} (limit {NOISY_RATIO:.0%}): something else is using the"
        f" machine. Stop it and time again: {next_command}"
    )


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"
