"""Corners of the engine core that an independent review found open, each closed by a test."""

from __future__ import annotations

from typing import Any

import pytest

from sim.core.engine import EngineCore
from sim.core.lifecycle import State
from sim.core.observer import Observer
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE, Reference, Textbook, VllmV1
from sim.kv.content import Content
from sim.policies.admission import Optimistic


class Reasons(Observer):
    def __init__(self) -> None:
        self.ended_by: dict[str, str] = {}
        self.tokens: dict[str, int] = {}

    def ended(self, request: Request, reason: str, detail: str) -> None:
        assert request.id not in self.ended_by
        self.ended_by[request.id] = reason
        self.tokens[request.id] = request.outputs


def vllm(**flags: Any) -> EngineCore:
    return EngineCore(VllmV1(**{"max_model_len": 1000, **flags}).spec(UNKNOWN_HARDWARE), Reasons())


def drain(core: EngineCore, limit: int = 1000) -> Reasons:
    """Run to the end, step by step, as depth 1 or 2 asks."""
    plans: list[Any] = []
    for _ in range(limit):
        plan = core.plan_step()
        if plan is not None:
            core.cut(plan, 1)
            plans.append(plan)
        if plans and (plan is None or len(plans) == core.spec.depth):
            core.commit_step(plans.pop(0), 1)
        elif plan is None:
            break
    assert isinstance(core.observer, Reasons)
    return core.observer


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_request_whose_last_token_is_in_flight_finishes_although_it_could_not_grow(async_scheduling: bool) -> None:
    core = vllm(block_size=4, num_gpu_blocks_override=3, async_scheduling=async_scheduling)
    core.submit(Request("r", prompt_tokens=4, max_tokens=100), stop_after=5)
    found = drain(core)
    assert found.ended_by == {"r": "stop"}
    assert found.tokens == {"r": 5}
    core.check_invariants()


def test_whoever_takes_blocks_for_a_whole_prompt_is_tested_for_a_whole_prompt() -> None:
    """Textbook takes all prompt blocks at once; admission by the next chunk must not let the pool go negative."""
    spec = Textbook(chunk_cap=4, block_size=4, num_blocks=6).spec(UNKNOWN_HARDWARE)
    from dataclasses import replace

    core = EngineCore(replace(spec, admission=Optimistic(full_sequence=False)), Reasons())
    for name in ("a", "b"):
        core.submit(Request(name, prompt_tokens=16, max_tokens=2), stop_after=2)
    core.plan_step()
    assert [request.id for request in core.running] == ["a"]
    assert core.store.free_blocks == 2


def test_placing_a_request_takes_no_more_of_the_cache_than_it_has_computed() -> None:
    core = EngineCore(Reference(block_size=4, num_blocks=20, prefix_cache=True).spec(UNKNOWN_HARDWARE))
    ids = (1, 2, 3, 4, 5, 6)
    core.store.seed(Request("", prompt_tokens=24, max_tokens=1, content=Content(ids, shared_blocks=6, owner=0)), 6)
    request = Request("r", prompt_tokens=30, max_tokens=5, content=Content(ids, shared_blocks=6, owner=0))
    core.place(request, computed_tokens=8, output_tokens=0, stop_after=5)
    assert core.used_blocks == 2
    core.check_invariants()
    core.cancel(request)
    assert core.store.free_blocks == 20
    core.check_invariants()


def test_placing_a_request_that_knows_nothing_more_is_refused() -> None:
    core = EngineCore(Reference(block_size=4, num_blocks=20).spec(UNKNOWN_HARDWARE))
    with pytest.raises(ValueError, match="has 8 computed tokens, all it knows"):
        core.place(Request("r", prompt_tokens=8, max_tokens=5), computed_tokens=8, output_tokens=0, stop_after=5)


def test_an_executor_may_stop_a_request_before_its_promised_end() -> None:
    core = vllm(async_scheduling=False, enable_prefix_caching=False)
    requests = [Request(name, prompt_tokens=4, max_tokens=50) for name in ("a", "b")]
    for request in requests:
        core.submit(request, stop_after=50)
    plan = core.plan_step()
    assert plan is not None
    core.commit_step(plan, 1)
    plan = core.plan_step()
    assert plan is not None
    core.cut(plan, 1)
    assert core.commit_step(plan, 1, stopped=[requests[0]]) == [requests[0]]
    assert isinstance(core.observer, Reasons)
    assert core.observer.ended_by == {"a": "stop"}
    assert core.observer.tokens == {"a": 2}
    assert requests[0].state is State.FINISHED
    core.check_invariants()


def test_requests_without_content_share_nothing_in_a_prefix_cache() -> None:
    core = vllm(num_gpu_blocks_override=20, async_scheduling=False)
    for name in ("a", "b"):
        core.submit(Request(name, prompt_tokens=40, max_tokens=3), stop_after=3)
    found = drain(core)
    assert set(found.ended_by) == {"a", "b"}
    core.check_invariants()


def test_adaptive_cap_an_arrival_behind_the_head_may_let_the_head_in() -> None:
    """The cap shrinks with every waiting request, and with it the blocks of the head's first chunk."""
    flags = {
        "long_prefill_token_threshold": 4,
        "long_prefill_token_threshold_adaptive": True,
        "max_num_batched_tokens": 64,
        "scheduler_reserve_full_isl": False,
        "block_size": 4,
        "num_gpu_blocks_override": 13,
        "enable_prefix_caching": False,
        "async_scheduling": False,
    }
    core = vllm(**flags)
    core.submit(Request("runs", prompt_tokens=4, max_tokens=100), stop_after=100)
    plan = core.plan_step()
    assert plan is not None
    core.commit_step(plan, 1)
    core.submit(Request("head", prompt_tokens=48, max_tokens=1), stop_after=1)
    plan = core.plan_step()
    assert plan is not None
    behind = Request("behind", prompt_tokens=4, max_tokens=1)
    core.submit(behind, stop_after=1)
    assert core.why_ignored(behind) is None


def test_preemption_policy_none_waits_and_does_not_lose_anything() -> None:
    spec = Reference(block_size=4, num_blocks=3, admission="optimistic").spec(UNKNOWN_HARDWARE)
    from dataclasses import replace

    from sim.policies.preemption import NoPreemption

    core = EngineCore(replace(spec, preemption=NoPreemption()), Reasons())
    core.submit(Request("a", prompt_tokens=4, max_tokens=3), stop_after=3)
    core.submit(Request("b", prompt_tokens=4, max_tokens=3), stop_after=3)
    found = drain(core)
    assert found.ended_by == {"a": "length", "b": "length"}  # one waits for the last block until the other is done
    core.check_invariants()
