"""Presets under policies that are not their own: what an independent reviewer found wrong once, and what holds now."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from sim.core import drafting
from sim.core.cohort import FOREVER
from sim.core.engine import EngineCore
from sim.core.lifecycle import State
from sim.core.request import Request
from sim.core.spec import EngineSpec
from sim.engines import ENGINES, UNKNOWN_HARDWARE, Reference, VllmV1
from sim.policies import all_policies
from sim.policies.admission import Conservative, Optimistic
from sim.policies.aging import LeastUrgentHysteresis
from sim.policies.budget import PrefillFirst
from sim.policies.preemption import Newest
from sim.testing.worlds import Row, Run, World
from tests.laws.costs import COSTS
from tests.laws.engines import ENGINES as WORLD_ENGINES
from tests.laws.worlds import random_world, run

TUNED: dict[str, Any] = {
    "ttft_s": 1e-5,
    "tpot_s": 1e-6,
    "aging_s": 1e-5,
    "min_residency_s": 8e-6,
    "max_work": 20.0,
    "target_s": 3e-6,
    "max_tokens": 32,
    "prefill_tokens_per_s": 1e6,
    "cost": COSTS["uneven"],
}
"""Values for parameters that have no default, or none that matters in worlds so small."""
KINDS = ("order", "admission", "budget", "preemption")


def with_others_policies(world: World, rng: Random) -> World | None:
    """The world with one or two policies drawn from all that there are; None if they do not go together."""
    changes: dict[str, Any] = {}
    for kind in rng.sample(KINDS, rng.choice((1, 1, 2))):
        registry = all_policies()[kind]
        name = rng.choice(registry.names())
        wanted = {key: TUNED[key] for key in registry.parameters(name) if key in TUNED}
        try:
            changes[kind] = registry.make(name, **wanted)
        except ValueError:
            return None
    return replace(world, spec=replace(world.spec, **changes))


@pytest.mark.parametrize("block", range(8))
def test_law_12_any_preset_under_any_policies(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And with it the laws that are checked on the way. The seed of a world that fails is in the message."""
    monkeypatch.setattr(drafting, "NO_PROGRESS_PREEMPTIONS", 300)
    tried = 0
    for seed in range(100 * block, 100 * block + 100):
        rng = Random(seed)
        world = with_others_policies(random_world(rng.choice(list(WORLD_ENGINES)), seed), rng)
        if world is not None:
            tried += 1
            assert run(world).facts() == run(world, max_stretch=1).facts(), f"seed {seed}: {world}"
    assert tried > 80


def preset(name: str, **flags: Any) -> EngineSpec:
    spec: EngineSpec = ENGINES.maker(name)(**flags).spec(UNKNOWN_HARDWARE)
    return spec


def free_and_single(spec: EngineSpec, rows: tuple[Row, ...], **more: Any) -> tuple[Run, Run]:
    world = World(spec, rows, COSTS["even"], **more)
    return run(world, max_stretch=FOREVER), run(world, max_stretch=1)


@pytest.mark.parametrize("full_sequence", [True, False])
def test_blocks_promised_in_a_scan_are_not_promised_twice(full_sequence: bool) -> None:
    """An engine that takes blocks after the scan, with a policy that looks at what is free: one of three fits."""
    spec = replace(preset("sglang", max_total_tokens=64), admission=Optimistic(full_sequence=full_sequence))
    core = EngineCore(spec)
    for name in "abc":
        core.submit(Request(name, prompt_tokens=40, max_tokens=4), stop_after=4)
    plan = core.plan_step()
    assert plan is not None
    assert [item.request.id for item in plan.items] == ["a"]
    assert core.store.free_blocks == 24


def test_prefill_first_beside_swapping() -> None:
    """A decode that has just come back from the host gets one token, not two, wherever the decodes stand."""
    spec = preset(
        "vllm-v0",
        enable_chunked_prefill=True,
        max_num_batched_tokens=64,
        num_gpu_blocks_override=12,
        max_model_len=190,
        preemption_mode="swap",
        num_cpu_blocks_override=60,
        max_num_seqs=8,
    )
    rows = tuple(Row(i * 700, 40 + i, 40, 40, 0, ()) for i in range(6))
    free, single = free_and_single(replace(spec, budget=PrefillFirst(64)), rows)
    assert free.facts() == single.facts()
    assert all(request.state is State.FINISHED for request in free.requests)
    assert sum(free.columns.preemptions) > 0


def test_a_policy_that_goes_by_promises_where_a_cache_holds_on_to_its_blocks() -> None:
    """The reservation fits, the blocks are still the tree's: they are reclaimed, or the request waits."""
    spec = replace(preset("mini-runtime", num_blocks=40), admission=Conservative())
    rows = tuple(Row(i * 60_000, 100, 20, 20, 0, ()) for i in range(12))
    free, single = free_and_single(spec, rows)
    assert free.facts() == single.facts()
    assert all(request.state is State.FINISHED for request in free.requests)


def test_law_12_a_pool_that_still_shrinks_asks_a_policy_that_looks_at_the_clock() -> None:
    spec = preset("vllm-v1", block_size=16, num_gpu_blocks_override=21, async_scheduling=False)
    rows = tuple(Row(0, 17 + i, 40, 40, 0, ()) for i in range(3))
    free, single = free_and_single(
        replace(spec, preemption=LeastUrgentHysteresis(8e-6)), rows, capacity_events=((3500, 4), (60000, 20))
    )
    assert free.facts() == single.facts()


@pytest.mark.parametrize("budget", [PrefillFirst(32), None])
def test_law_12_a_block_that_an_output_fills_lets_the_head_in(budget: PrefillFirst | None) -> None:
    """Whether the queue is looked at before the decodes or behind them."""
    spec = Reference(block_size=8, num_blocks=4, prefix_cache=True).spec(UNKNOWN_HARDWARE)
    rows = (Row(0, 2, 27, 28, 1, (0, 1, 2)), Row(250, 27, 4, 1, 0, (0, 1, 2)))
    free, single = free_and_single(replace(spec, budget=budget or spec.budget), rows)
    assert free.facts() == single.facts()


def test_a_last_token_in_flight_comes_out_whatever_becomes_of_its_request() -> None:
    """Asynchronous: the victim's end is already being computed, so there is nothing to fail."""
    spec = VllmV1(block_size=2, num_gpu_blocks_override=6, max_model_len=10, enable_prefix_caching=False)
    rows = (Row(0, 3, 5, 5, 0, ()), Row(0, 4, 8, 8, 0, ()), Row(0, 1, 1, 1, 0, ()))
    made = replace(spec.spec(UNKNOWN_HARDWARE), preemption=Newest("fail"))
    free, single = free_and_single(made, rows)
    assert free.facts() == single.facts()
    assert free.requests[2].state is State.FINISHED


def test_a_pool_that_stays_small_refuses_who_waits_for_more() -> None:
    """Memory shrinks for good: the prompt that no longer fits ends, and those behind it are served."""
    spec = Reference(block_size=1, num_blocks=100).spec(UNKNOWN_HARDWARE)
    rows = (Row(0, 30, 60, 60, 0, ()), Row(0, 90, 5, 5, 0, ()), Row(0, 30, 5, 5, 0, ()))
    free, single = free_and_single(spec, rows, capacity_events=((5000, 95), (9000, 90), (15_000, 80)))
    assert free.facts() == single.facts()
    assert [request.state for request in free.requests] == [State.FAILED, State.REJECTED, State.FINISHED]


def test_an_initial_state_cannot_have_more_requests_than_slots() -> None:
    core = EngineCore(Reference(block_size=4, num_blocks=50, slots=1).spec(UNKNOWN_HARDWARE))
    core.place(Request("a", prompt_tokens=8, max_tokens=8), computed_tokens=8, output_tokens=1, stop_after=8)
    with pytest.raises(ValueError, match="request b has no sequence slot, there are 1"):
        core.place(Request("b", prompt_tokens=8, max_tokens=8), computed_tokens=8, output_tokens=1, stop_after=8)
    core.check_invariants()
