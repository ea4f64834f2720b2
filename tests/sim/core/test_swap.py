"""Swapping: who goes to the host, who comes back when, and what becomes of whom neither fits."""

from __future__ import annotations

from dataclasses import replace

from sim.core.admit import Admit, nothing_swapped
from sim.core.engine import EngineCore
from sim.core.lifecycle import Event, State
from sim.core.observer import Observer
from sim.core.passes import Advance
from sim.core.plan import BatchPlan
from sim.core.request import Request
from sim.core.swap import SwapIn
from sim.engines import UNKNOWN_HARDWARE, Reference
from sim.kv.host import HostSpec
from sim.policies.admission import Optimistic
from sim.policies.preemption import Newest
from sim.policies.watermark import Watermark


class Ends(Observer):
    """Remembers why requests ended."""

    def __init__(self) -> None:
        self.why: dict[str, str] = {}

    def ended(self, request: Request, reason: str, detail: str) -> None:
        self.why[request.id] = f"{reason}: {detail}"


def engine(*, blocks: int, host_blocks: int = 100, watermark: int | None = None) -> EngineCore:
    """Blocks of 4; plain engine, newest is swapped."""
    spec = Reference(block_size=4, num_blocks=blocks).spec(UNKNOWN_HARDWARE)
    admission = Optimistic() if watermark is None else Watermark(watermark)
    host = HostSpec(host_blocks, ns_per_block=10.0)
    return EngineCore(replace(spec, preemption=Newest(mode="swap"), host=host, admission=admission), Ends())


def submit(core: EngineCore, name: str, prompt: int, outputs: int) -> Request:
    request = Request(name, prompt_tokens=prompt, max_tokens=outputs)
    core.submit(request, stop_after=outputs)
    return request


def step(core: EngineCore) -> BatchPlan:
    plan = core.plan_step()
    assert plan is not None
    core.commit_step(plan, plan.steps)
    core.check_invariants()
    return plan


def b_swapped(core: EngineCore) -> tuple[Request, Request]:
    """Two prompts of 8 in 5 blocks: a takes the last block, b goes with his 2."""
    a, b = submit(core, "a", 8, 6), submit(core, "b", 8, 6)
    step(core)
    plan = step(core)
    assert [request.id for request in plan.preempted] == ["b"]
    return a, b


def test_swapped_tokens_are_not_computed_again() -> None:
    """b comes back with all his KV when a has gone, and decodes in that very step."""
    core = engine(blocks=5)
    _, b = b_swapped(core)
    assert (b.state, b.computed_tokens, core.host.free_blocks) == (State.SWAPPED, 8, 98)
    plan = step(core)
    while core.swapped:
        assert plan.swapped_blocks == 0
        plan = step(core)
    assert (plan.items, plan.decode_requests, plan.swapped_blocks, plan.steps) == ([], 1, 2, 1)
    assert (b.state, b.computed_tokens, core.host.free_blocks) == (State.RUNNING, 9, 100)
    while core.running:
        step(core)
    assert b.output_tokens == 6


def test_a_full_host_ends_the_victim() -> None:
    core = engine(blocks=5, host_blocks=1)
    _, b = b_swapped(core)
    assert b.state is State.FAILED
    assert core.observer.why == {  # type: ignore[attr-defined]
        "b": "out of host memory: needs 2 blocks on the host, 1 are free"
    }
    assert (core.host.free_blocks, len(core.swapped)) == (1, 0)


def test_a_cancelled_request_gives_its_host_blocks_back() -> None:
    core = engine(blocks=5)
    _, b = b_swapped(core)
    core.cancel(b, Event.CANCEL, "client")
    assert (b.state, core.host.free_blocks, len(core.swapped)) == (State.CANCELLED, 100, 0)
    core.check_invariants()


def test_who_has_outgrown_the_pool_ends() -> None:
    """Alone, 2 blocks full and a ninth token wanted: it is its own victim and could never come back."""
    core = engine(blocks=2)
    alone = submit(core, "alone", 8, 6)
    step(core)
    step(core)
    assert alone.state is State.FAILED
    assert core.observer.why == {  # type: ignore[attr-defined]
        "alone": "out of KV: needs 3 blocks to go on, the pool has 2"
    }
    assert core.idle


def test_who_is_refused_for_ever_ends_too() -> None:
    """5 blocks, 2 of them a watermark: who has 4 when the pool shrinks under him never finds them free again."""
    core = engine(blocks=5, watermark=2)
    alone = submit(core, "alone", 12, 9)
    step(core)
    plan = core.plan_step()
    assert plan is not None
    core.cut(plan, 2)
    core.commit_step(plan, 2)
    core.resize(2)
    step(core)
    assert alone.state is State.SWAPPED
    core.resize(5)
    assert core.plan_step() is None
    assert (alone.state, core.idle, core.host.free_blocks) == (State.FAILED, True, 100)
    assert core.observer.why["alone"].startswith("prompt > KV: needs 4 blocks")  # type: ignore[attr-defined]


def test_who_came_in_in_this_step_is_not_moved() -> None:
    """Prefills first: the new one is let in, and has nothing to move when the decode behind him lacks a block."""
    core = engine(blocks=3)
    spec = replace(core.spec, passes=(core.spec.passes[1], core.spec.passes[0], core.spec.passes[2]))
    core = EngineCore(spec, Ends())
    old = submit(core, "old", 8, 6)
    step(core)
    new = submit(core, "new", 4, 1)
    plan = step(core)
    assert [request.id for request in plan.preempted] == ["new"]
    assert (new.state, plan.swapped_blocks, old.state) == (State.QUEUED, 0, State.RUNNING)


def test_a_policy_that_swaps_brings_its_pass_with_it() -> None:
    """Behind the decodes, and nobody new comes in while somebody is swapped. Other policies leave the passes alone."""
    spec = Reference(num_blocks=5).spec(UNKNOWN_HARDWARE)
    passes = EngineCore(replace(spec, preemption=Newest(mode="swap"))).passes
    assert [type(each).__name__ for each in passes] == ["Advance", "SwapIn", "Admit", "Run"]
    admit = passes[2]
    assert isinstance(admit, Admit)
    assert nothing_swapped in admit.guards
    own = spec.passes[1]
    assert isinstance(own, Admit)
    assert nothing_swapped not in own.guards
    assert EngineCore(spec).passes == spec.passes
    made = (Advance(), own, SwapIn(), spec.passes[2])
    assert EngineCore(replace(spec, passes=made, preemption=Newest(mode="swap"))).passes == made


def test_requests_are_in_one_place_each() -> None:
    """Law 1 with swapped ones, after every step."""
    core = engine(blocks=12, host_blocks=20)
    requests = [submit(core, str(number), 7 + number, 9) for number in range(6)]
    seen = set()
    while not core.idle:
        step(core)
        states = [request.state for request in requests]
        seen |= set(states)
        places = [(State.QUEUED, core.waiting), (State.RUNNING, core.running), (State.SWAPPED, core.swapped)]
        for state, place in places:
            assert states.count(state) == len(place)
    assert State.SWAPPED in seen
    assert all(request.state is State.FINISHED for request in requests)
