"""Every kind of task runs on the CPU, out of memory included."""

from __future__ import annotations

import weakref
from itertools import islice
from pathlib import Path

import pytest
import torch

from calibrate.cases import TURN, cases
from calibrate.environment import (
    CpuPlatform,
    NoDevice,
    is_out_of_memory,
    memory_limits,
    open_cuda,
    pinned_threads,
    software_info,
)
from calibrate.models import ModelError, timed_model
from calibrate.run import measure
from calibrate.run_command import run
from calibrate.tasks import TASK_FIELDS, TaskSpec
from calibrate.timing import Effort
from calibrate.workbench import Workbench
from sim.commands.errors import Failure
from tests.calibrate.small_run import MODEL, TINY, TINY_LIMITS

QUICK = Effort(warm_up_runs=1, min_samples=2, max_samples=2)


@pytest.fixture(scope="module")
def bench() -> Workbench:
    torch.set_num_threads(1)
    return Workbench(CpuPlatform(1, "monotonic"), TINY, TINY_LIMITS, torch.float32)


def test_every_case_of_four_turns_can_be_timed(bench: Workbench) -> None:
    tasks = list(islice(cases(TINY, TINY_LIMITS, 0), 4 * len(TURN)))
    assert {task.kind for task in tasks} == set(TASK_FIELDS)
    for task in tasks:
        measurement = measure(bench, task, QUICK)
        assert measurement.outcome == "ok", (task, measurement.reason)
        assert measurement.spent_s >= sum(measurement.seconds)


def test_more_kv_than_the_pool_has_is_out_of_memory(bench: Workbench) -> None:
    measurement = measure(bench, TaskSpec("step", decode=(255,) * 9), QUICK)
    assert measurement.outcome == "oom"
    assert measurement.reason == "the step needs 144 KV blocks, the pool has 128"


def test_what_the_allocator_refuses_is_out_of_memory(bench: Workbench) -> None:
    measurement = measure(bench, TaskSpec("copy", num_blocks=1, num_bytes=1 << 47), QUICK)
    assert measurement.outcome == "oom"
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


def test_an_error_that_followed_from_a_lack_of_memory_is_one() -> None:
    """As when a CUDA graph's capture runs out of memory and its end complains."""
    error = RuntimeError("operation failed due to a previous error during capture")
    error.__context__ = torch.OutOfMemoryError("CUDA out of memory")
    assert is_out_of_memory(error)


def test_what_a_failed_task_held_is_gone_when_memory_is_given_back() -> None:
    class Large:
        """Stands for what a task has allocated."""

    alive: list[weakref.ref[Large]] = []
    seen: list[bool] = []

    class Failing:
        def samples(self, task: TaskSpec, effort: Effort) -> tuple[float, ...]:
            large = Large()
            alive.append(weakref.ref(large))
            raise MemoryError("no more")

        def is_out_of_memory(self, error: BaseException) -> bool:
            return is_out_of_memory(error)

        def release(self) -> None:
            seen.append(alive[0]() is None)

    assert measure(Failing(), TaskSpec("launch"), QUICK).outcome == "oom"
    assert seen == [True]


def test_weights_that_do_not_fit_beside_other_programs_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("calibrate.workbench.Workbench", no_room)
    with pytest.raises(Failure, match="weights of small-llama and 65,536 tokens of KV do not fit into the memory"):
        run(tmp_path / "out")


def test_a_larger_step_takes_longer(bench: Workbench) -> None:
    """Not a benchmark: 100 times the work, at least twice the time."""
    small, large = (TaskSpec("step", prefill=((tokens, 0),)) for tokens in (1, 128))
    assert min(bench.samples(large, Effort())) > 2 * min(bench.samples(small, Effort()))


def test_limits_follow_memory_and_model() -> None:
    limits = memory_limits(MODEL, torch.float32, 1 << 30, 2048, 128, 65_536)
    assert (limits.pool_tokens, limits.max_context_tokens, limits.max_tokens) == (65_536, 4096, 2048)
    assert limits.block_bytes == 16 * 2 * 4 * 2 * 32 * 4
    less = memory_limits(MODEL, torch.float32, 60 << 20, 2048, 128, 65_536)
    assert less.pool_tokens < 65_536
    assert less.pool_tokens % 16 == 0
    with pytest.raises(
        ModelError, match=r"llama-3.1-70b needs 1[45]\d,\d+,\d+,\d+ bytes .* the device has 1,073,741,824"
    ):
        memory_limits(timed_model("llama-3.1-70b"), torch.bfloat16, 1 << 30, 2048, 128, 65_536)


def test_what_the_samples_say_of_the_machine() -> None:
    at = CpuPlatform(1, "process_cpu")
    info = at.info()
    assert (info.kind, info.threads, info.clock) == ("cpu", 1, "process_cpu")
    assert info.memory_bytes > 1 << 28
    assert software_info(at).kernels == "sdpa"
    assert software_info(at).torch == torch.__version__


def test_threads_are_pinned_and_put_back() -> None:
    import os

    before = os.sched_getaffinity(0), torch.get_num_threads()
    with pinned_threads(1, "monotonic"):
        assert len(os.sched_getaffinity(0)) == torch.get_num_threads() == 1
    with pinned_threads(1, "process_cpu"):
        assert os.sched_getaffinity(0) == before[0]
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_that_is_not_there_is_named() -> None:
    with pytest.raises(NoDevice, match=r"torch 2.* sees no CUDA device here; --device cpu works everywhere"):
        open_cuda(TINY, torch.bfloat16, use_flashinfer=True)
