"""The loop of a run: budget, resume, out of memory, interruption, and what it prints."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path

import pytest

from calibrate.cases import cases
from calibrate.records import Measurement, SamplesWriter, TaskSpec, read_samples
from calibrate.run import Budget, DeviceBroke, in_words, noise_warning, run_cases, summary
from calibrate.timing import Effort
from tests.calibrate.small_run import LIMITS, MODEL, header

TASKS = list(islice(cases(MODEL, LIMITS, 0), 84))
STEP = TaskSpec("step", prefill=((4, 8),), decode=(3, 101), verify=((2, 50),))


class FakeBench:
    """Every task takes 1 ms, but for those that have no memory, fail or are interrupted."""

    def __init__(self, *, no_memory: str = "", fails: str = "", interrupt_after: int | None = None) -> None:
        self._no_memory, self._fails, self._interrupt_after = no_memory, fails, interrupt_after
        self.ran: list[TaskSpec] = []
        self.released = 0

    def samples(self, task: TaskSpec, effort: Effort) -> tuple[float, ...]:
        if len(self.ran) == self._interrupt_after:
            raise KeyboardInterrupt
        self.ran.append(task)
        if task.kind == self._no_memory:
            raise MemoryError("the step needs 99 KV blocks")
        if task.kind == self._fails:
            raise RuntimeError("a kernel\nfailed")
        return (0.001, 0.0011)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)

    def release(self) -> None:
        self.released += 1


def long_budget() -> Budget:
    return Budget(3600.0, time.monotonic())


def test_every_case_is_measured_in_order_and_written_at_once(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    bench = FakeBench()
    with SamplesWriter(path, header()) as writer:
        run_cases(bench, writer, TASKS, long_budget())
        assert [m.task for m in read_samples(path).measurements] == TASKS == bench.ran


def test_an_interrupted_run_goes_on_where_it_was_repeats_included(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    with SamplesWriter(path, header()) as writer, pytest.raises(KeyboardInterrupt):
        run_cases(FakeBench(interrupt_after=50), writer, TASKS, long_budget())
    assert len(read_samples(path).measurements) == 50
    rest = FakeBench()
    with SamplesWriter(path, header()) as writer:
        done = run_cases(rest, writer, TASKS, long_budget())
    assert rest.ran == TASKS[50:]
    assert [m.task for m in done] == TASKS
    assert [m.task for m in read_samples(path).measurements] == TASKS


def test_out_of_memory_and_failures_are_outcomes_and_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    bench = FakeBench(no_memory="verify_attention", fails="gemm")
    with SamplesWriter(path, header()) as writer:
        run_cases(bench, writer, TASKS, long_budget())
    found = read_samples(path).measurements
    by_kind = {m.task.kind: (m.outcome, m.reason) for m in found}
    assert by_kind["verify_attention"] == ("oom", "the step needs 99 KV blocks")
    assert by_kind["gemm"] == ("failed", "a kernel failed")
    assert by_kind["step"] == ("ok", "")
    assert bench.released == sum(m.outcome != "ok" for m in found) > 0


def test_what_failed_is_tried_again_and_what_had_no_memory_is_not(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    with SamplesWriter(path, header()) as writer:
        run_cases(FakeBench(no_memory="verify_attention", fails="gemm"), writer, TASKS, long_budget())
    mended = FakeBench()
    with SamplesWriter(path, header()) as writer:
        run_cases(mended, writer, TASKS, long_budget())
    assert mended.ran == [task for task in TASKS if task.kind == "gemm"]


def test_a_device_that_fails_every_task_ends_the_run(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    steps = [task for task in TASKS if task.kind == "step"]
    with (
        SamplesWriter(path, header()) as writer,
        pytest.raises(DeviceBroke, match=r"the last 10 tasks failed, .*a kernel"),
    ):
        run_cases(FakeBench(fails="step"), writer, steps, long_budget())
    assert len(read_samples(path).measurements) == 10


def test_the_budget_counts_what_earlier_attempts_spent(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    with SamplesWriter(path, header()) as writer:
        writer.append(Measurement(TASKS[0], (0.5,), spent_s=59.0))
    bench = FakeBench()
    with SamplesWriter(path, header()) as writer:
        run_cases(bench, writer, TASKS, Budget(59.0, time.monotonic()))
    assert bench.ran == []
    with SamplesWriter(path, header()) as writer:
        run_cases(bench, writer, TASKS, Budget(59.0, time.monotonic() + 10))
    assert bench.ran == TASKS[1:]


def test_a_bug_of_ours_is_not_an_outcome(tmp_path: Path) -> None:
    class Broken(FakeBench):
        def samples(self, task: TaskSpec, effort: Effort) -> tuple[float, ...]:
            raise AssertionError("wrong shape")

    with SamplesWriter(tmp_path / "s.jsonl", header()) as writer, pytest.raises(AssertionError):
        run_cases(Broken(), writer, TASKS, long_budget())


def test_progress_goes_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calibrate.run.PROGRESS_EVERY_S", 0.0)
    with SamplesWriter(tmp_path / "s.jsonl", header()) as writer:
        run_cases(FakeBench(no_memory="step"), writer, [STEP, TaskSpec("launch")], long_budget())
    shown = capsys.readouterr()
    assert shown.out == ""
    first, second = shown.err.splitlines()
    assert first == f"0:00 of 60:00: 1 tasks, last {in_words(STEP)}: oom"
    assert second == "0:00 of 60:00: 2 tasks, last launch: 1.050 ms"


def test_tasks_in_words() -> None:
    assert in_words(STEP) == "step: chunk of 4 behind 8 + 2 decodes at 52 + 1 verifications of 2 at 50"
    attention = TaskSpec("verify_attention", width=3, contexts=(10, 30))
    assert in_words(attention) == "verify_attention width 3 contexts 2 of mean 20"


def test_the_summary_counts_outcomes_noise_and_drift() -> None:
    done = [
        Measurement(STEP, (1.0, 1.0, 1.0, 2.0, 2.0)),
        Measurement(TaskSpec("launch"), (), "oom", "no memory"),
        Measurement(STEP, (1.1,)),
    ]
    lines = summary(done).splitlines()
    assert lines[1].split() == ["step", "2", "2", "0", "0", "6", "100.0%"]
    assert lines[2].split() == ["launch", "1", "0", "1", "0", "0", "-"]
    assert lines[3] == "repeats of 1 steps later in the run: median change 10.0%, largest 10.0%"


def test_a_busy_machine_is_named_with_what_to_do() -> None:
    quiet, busy = Measurement(STEP, (1.0, 1.01, 1.02)), Measurement(STEP, (1.0, 1.5, 2.0))
    assert noise_warning([quiet], "again") is None
    warning = noise_warning([busy], "again")
    assert warning is not None
    assert "spread by 33% (limit 10%)" in warning
    assert warning.endswith(": again")
