"""When a plan may hold for more than one step: one test for each precondition in `EngineCore._steady_steps`."""

from __future__ import annotations

from typing import Any

import pytest

from sim.core.admit import BLOCKS_ARE_THERE, BUDGET_IS_OPEN, GRANT_CHUNK, SLOT_IS_FREE, Admit
from sim.core.drafting import Drafting
from sim.core.engine import EngineCore
from sim.core.passes import Advance, Run
from sim.core.plan import BatchPlan, Blocker, StepDraft
from sim.core.request import Request
from sim.core.spec import EngineSpec
from sim.engines import UNKNOWN_HARDWARE, Reference, VllmV1
from sim.kv.content import Content
from sim.kv.store import CountingStore
from sim.policies.admission import Optimistic
from sim.policies.budget import TokenWork
from sim.policies.order import Fcfs
from sim.policies.preemption import Newest


class ContextWork:
    """A decode weighs 1 per KV entry it reads."""

    def decode_work(self, requests: int, context_tokens: int) -> float:
        return context_tokens + requests

    def prefill_work(self, tokens: int, context: int) -> float:
        return tokens


def engine(**flags: Any) -> EngineCore:
    flags = {"block_size": 16, "num_blocks": 100, **flags}
    return EngineCore(Reference(**flags).spec(UNKNOWN_HARDWARE))


def submit(core: EngineCore, name: str, prompt: int, outputs: int, **more: Any) -> Request:
    request = Request(name, prompt_tokens=prompt, max_tokens=outputs, **more)
    core.submit(request, stop_after=outputs)
    return request


def run_one(core: EngineCore) -> BatchPlan:
    plan = core.plan_step()
    assert plan is not None
    core.commit_step(plan, plan.steps)
    return plan


def test_up_to_the_next_ending() -> None:
    core = engine()
    submit(core, "short", 4, 10)
    submit(core, "long", 4, 50)
    assert run_one(core).steps == 1  # prefills
    assert run_one(core).steps == 9
    assert run_one(core).steps == 40


def test_up_to_the_next_block_shortage() -> None:
    """Two requests of 16 tokens in three blocks: the second block of one of them is the last."""
    core = engine(num_blocks=4)
    submit(core, "a", 16, 60)
    submit(core, "b", 20, 60)  # 2 blocks; fills the second at KV 32, so its third is wanted in step 13
    run_one(core)
    plan = core.plan_step()
    assert plan is not None
    assert plan.steps == 12
    core.commit_step(plan, 12)
    plan = core.plan_step()
    assert plan is not None
    assert [request.id for request in plan.preempted] == ["b"]


def test_not_while_somebody_is_in_his_prefill() -> None:
    core = engine(token_budget=8)
    submit(core, "decoding", 4, 50)
    run_one(core)
    submit(core, "prompt", 40, 5)
    assert run_one(core).steps == 1
    assert run_one(core).steps == 1


def test_not_in_a_step_that_preempted() -> None:
    core = engine(num_blocks=2)
    submit(core, "a", 16, 20)
    submit(core, "b", 16, 20)
    run_one(core)
    plan = run_one(core)
    assert plan.preempted
    assert plan.steps == 1


@pytest.mark.parametrize(
    ("flags", "blocker"),
    [({"slots": 1}, Blocker.SLOTS), ({"token_budget": 1}, Blocker.WORK), ({"num_blocks": 5}, Blocker.BLOCKS)],
)
def test_whoever_waits_is_blocked_by_what_only_an_event_can_change(flags: dict[str, int], blocker: Blocker) -> None:
    core = engine(**flags)
    submit(core, "runs", 1, 40)
    run_one(core)
    submit(core, "waits", 79, 5)
    plan = run_one(core)
    assert plan.deferred is not None
    assert plan.deferred.blocker is blocker
    assert plan.steps > 20


def test_up_to_the_block_that_the_waiting_head_could_hit() -> None:
    """FASTCORE pitfall 9: a running decode registers the block that the head lacks; recordings and fuzz miss it.

    Two requests, three blocks of 4. `a` has prompt 4 and writes known outputs; `b` begins with the same 8 tokens. `b`
    hits one block and needs two more, one is free: refused. When `a` fills its second block, `b` hits that too.
    """
    config = VllmV1(block_size=4, num_gpu_blocks_override=4, async_scheduling=False, max_model_len=64)
    shared = Content((1, 2, 3, 4), shared_blocks=4, owner=0)
    for max_stretch in (1, 1000):
        core = EngineCore(config.spec(UNKNOWN_HARDWARE), max_stretch=max_stretch)
        submit(core, "a", 4, 8, content=shared)
        steps = run_one(core).steps
        submit(core, "b", 9, 1, content=Content((1, 2, 5, 6), shared_blocks=2, owner=0))
        admitted_after = None
        while core.running and admitted_after is None:
            plan = core.plan_step()
            assert plan is not None
            if any(item.request.id == "b" for item in plan.items):
                admitted_after = steps
            core.commit_step(plan, plan.steps)
            steps += plan.steps
        assert admitted_after == 4, max_stretch  # KV of `a`: 4, then 5, 6, 7; its 8th entry fills block 2


def test_not_for_longer_than_growing_contexts_fit_a_work_budget() -> None:
    spec = EngineSpec(
        name="made",
        passes=(Advance(), Admit(BUDGET_IS_OPEN, SLOT_IS_FREE, GRANT_CHUNK, BLOCKS_ARE_THERE), Run()),
        order=Fcfs(),
        admission=Optimistic(),
        budget=TokenWork(max_work=30, weights=ContextWork()),
        preemption=Newest(),
        store=lambda: CountingStore(100, 16),
        max_running=10,
        max_model_len=1000,
    )
    core = EngineCore(spec)
    submit(core, "a", 10, 100)
    run_one(core)
    plan = core.plan_step()
    assert plan is not None
    assert 1 < plan.steps <= 20  # step i reads 11 + i entries; 30 at most


def test_a_turn_of_two_forwards_stretches_only_as_a_whole_and_never_stalls() -> None:
    """Between its forwards the engine sees who has ended; if nobody is left for the second, a new turn begins.

    A turn whose first forward has nothing to run is one forward, and may be repeated.
    """
    tests = (BUDGET_IS_OPEN, SLOT_IS_FREE, GRANT_CHUNK, BLOCKS_ARE_THERE)
    spec = EngineSpec(
        name="made",
        passes=(Admit(*tests), Run(restart=False), Advance(), Run()),
        order=Fcfs(),
        admission=Optimistic(),
        budget=Reference().spec(UNKNOWN_HARDWARE).budget,
        preemption=Newest(),
        store=lambda: CountingStore(100, 16),
        max_running=1,
        max_model_len=1000,
    )
    core = EngineCore(spec)
    for name, outputs in (("one", 1), ("two", 1), ("three", 6)):
        submit(core, name, 4, outputs)
    plans = []
    while (plan := core.plan_step()) is not None:
        plans.append((len(plan.items), plan.decode_requests, plan.steps))
        core.commit_step(plan, plan.steps)
    assert plans == [(1, 0, 1)] * 3 + [(0, 1, 1), (0, 1, 4)]
    core.check_invariants()


def test_a_victim_of_a_step_in_which_all_decode_falls_out_of_it() -> None:
    """Passes that preempt after the decodes were scheduled as one (retraction) find the books in order."""

    class Retract:
        def apply(self, core: Drafting, draft: StepDraft) -> None:
            if draft.all_decodes and len(core.running) == 2:
                core.preempt(draft, next(reversed(core.running)))

        def steady_steps(self, core: Drafting, plan: BatchPlan) -> int:
            return 1

    spec = engine(num_blocks=20).spec
    made = EngineSpec(
        name="made",
        passes=(Advance(), Retract(), spec.passes[1], Run()),
        order=spec.order,
        admission=spec.admission,
        budget=spec.budget,
        preemption=spec.preemption,
        store=spec.store,
        max_running=10,
        max_model_len=1000,
    )
    core = EngineCore(made)
    submit(core, "a", 16, 5)
    submit(core, "b", 16, 5)
    run_one(core)
    plan = core.plan_step()
    assert plan is not None
    assert (plan.decode_requests, [request.id for request in plan.preempted]) == (1, ["b"])
    core.commit_step(plan, 1)
    core.check_invariants()
    assert core.used_blocks == 2
