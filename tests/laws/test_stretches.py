"""Stretches are used: the cost of a run is in its events, not in its tokens (DESIGN §6). Counts, never times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from sim.core.spec import EngineSpec
from sim.engines import UNKNOWN_HARDWARE, Reference, StaticBatch, Textbook, VllmV1
from sim.engines.mini_runtime import MiniRuntime
from sim.engines.vllm_v0 import VllmV0
from sim.testing.worlds import Row, Run, World
from tests.laws.costs import COSTS, STEP_NS
from tests.laws.worlds import run

BLOCK = 16


def rows(count: int, *, every_steps: float, prompt: int, output: int, timeout: int = -1) -> tuple[Row, ...]:
    """Requests at even distances, all different from each other a little."""
    return tuple(
        Row(
            arrival_ns=round(number * every_steps * STEP_NS),
            prompt=prompt + number % 7,
            max_tokens=output + 50,
            stop_after=output + number % 11,
            priority=0,
            ids=tuple(range(prompt // BLOCK // 2)),
            timeout_ns=timeout,
        )
        for number in range(count)
    )


def vllm(**flags: Any) -> EngineSpec:
    config = VllmV1(**{"async_scheduling": False, "enable_prefix_caching": False, "max_model_len": 8192, **flags})
    return config.spec(UNKNOWN_HARDWARE)


def vllm_v0(**flags: Any) -> EngineSpec:
    return VllmV0(**{"max_model_len": 8192, "enable_chunked_prefill": False, **flags}).spec(UNKNOWN_HARDWARE)


def mini_runtime(**flags: Any) -> EngineSpec:
    return MiniRuntime(**flags).spec(UNKNOWN_HARDWARE)


@dataclass(frozen=True)
class Load:
    """What comes, and what it must at least and at most come to."""

    spec: Callable[[], EngineSpec]
    rows: tuple[Row, ...]
    stretched_ratio: float
    """At least this share of all steps is not the first of its plan."""
    events_per_request: float
    """At most: arrivals, boundaries and departures of the run, divided by requests."""


QUIET = rows(40, every_steps=150, prompt=100, output=200)
"""One or two at a time."""
BUSY = rows(120, every_steps=10, prompt=100, output=200)
"""About twenty at a time."""
BURST = rows(60, every_steps=0, prompt=100, output=200)
"""All at once, more than there are slots or blocks."""

LOADS = {
    "quiet, vllm-v1": Load(vllm, QUIET, 0.98, 4.5),
    "quiet, async": Load(lambda: vllm(async_scheduling=True), QUIET, 0.97, 5.5),
    "quiet, prefix": Load(lambda: vllm(enable_prefix_caching=True), QUIET, 0.98, 4.5),
    "quiet, reference": Load(lambda: Reference(admission="conservative").spec(UNKNOWN_HARDWARE), QUIET, 0.98, 4.5),
    "quiet, textbook": Load(lambda: Textbook(block_size=16, num_blocks=512).spec(UNKNOWN_HARDWARE), QUIET, 0.98, 4.5),
    "busy, vllm-v1": Load(vllm, BUSY, 0.42, 4.0),
    "busy, async": Load(lambda: vllm(async_scheduling=True), BUSY, 0.33, 4.5),
    "busy, prefix": Load(lambda: vllm(enable_prefix_caching=True), BUSY, 0.42, 4.0),
    "busy, no slots": Load(lambda: vllm(max_num_seqs=8), BUSY, 0.9, 3.4),
    "burst, no slots": Load(lambda: vllm(max_num_seqs=8), BURST, 0.92, 2.8),
    "burst, no blocks": Load(lambda: vllm(num_gpu_blocks_override=200), BURST, 0.72, 5.3),
    "quiet, vllm-v0": Load(vllm_v0, QUIET, 0.98, 4.2),
    "quiet, vllm-v0 chunked": Load(lambda: vllm_v0(enable_chunked_prefill=True), QUIET, 0.98, 4.5),
    "busy, vllm-v0": Load(vllm_v0, BUSY, 0.42, 4.8),
    "burst, vllm-v0 no blocks": Load(lambda: vllm_v0(num_gpu_blocks_override=200), BURST, 0.72, 5.4),
    "burst, vllm-v0 swap": Load(lambda: vllm_v0(num_gpu_blocks_override=200, preemption_mode="swap"), BURST, 0.7, 5.8),
    "burst, vllm-v0 priority": Load(
        lambda: vllm_v0(num_gpu_blocks_override=200, scheduling_policy="priority"), BURST, 0.72, 5.4
    ),
    "quiet, mini-runtime": Load(mini_runtime, QUIET, 0.98, 5.0),
    "burst, mini-runtime, no slots": Load(lambda: mini_runtime(max_batch_size=8), BURST, 0.91, 3.4),
    "burst, mini-runtime, no blocks": Load(lambda: mini_runtime(max_batch_size=64, num_blocks=200), BURST, 0.79, 1.7),
    "burst, static batch": Load(lambda: StaticBatch(slots=20).spec(UNKNOWN_HARDWARE), BURST, 0.92, 1.8),
}


@pytest.mark.parametrize("name", LOADS)
def test_most_steps_are_in_stretches(name: str):
    """At least so many steps come without a plan, and at most so many events per request."""
    load = LOADS[name]
    one = run(World(load.spec(), load.rows, COSTS["uneven"]))
    assert one.outcome.stalled is None
    plans = one.log.steps.steps
    assert 1 - len(plans) / sum(plans) >= load.stretched_ratio
    assert one.outcome.events / len(load.rows) <= load.events_per_request


def run_even(spec: EngineSpec, requests: tuple[Row, ...]) -> Run:
    return run(World(spec, requests, COSTS["even"]))


def test_an_arrival_behind_a_full_house_ends_nothing():
    """With all slots taken, arrivals come to one event each: the stretch in progress goes on."""
    spec = vllm(max_num_seqs=1)
    alone = run_even(spec, rows(1, every_steps=0, prompt=16, output=300))
    assert alone.outcome.events == 1 + 3
    crowd = rows(1, every_steps=0, prompt=16, output=300) + rows(50, every_steps=5, prompt=16, output=1)[1:]
    assert run_even(spec, crowd).log.steps.steps[1] == alone.log.steps.steps[1] == 299


def test_deadlines_that_nobody_reaches_end_nothing():
    """A timeout that comes after its request's end costs no step."""
    without = run_even(vllm(), QUIET)
    with_deadlines = run_even(vllm(), rows(40, every_steps=150, prompt=100, output=200, timeout=10**9))
    assert with_deadlines.outcome.events == without.outcome.events
    assert list(with_deadlines.log.steps.steps) == list(without.log.steps.steps)
