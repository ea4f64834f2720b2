"""vLLM V0's rules that no recording pins, in made cases with worked-out answers.

Source of the answers: vLLM 0.6.6.post1 `vllm/core/scheduler.py` and `core/block_manager.py`, followed by hand.
"""

from __future__ import annotations

from typing import Any

import pytest

from sim.core.engine import EngineCore
from sim.core.lifecycle import State
from sim.core.observer import Observer
from sim.core.plan import BatchPlan
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE
from sim.engines.vllm_v0 import VllmV0
from sim.kv.content import Content

BLOCK = 4


class Ends(Observer):
    """Remembers why requests ended."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def ended(self, request: Request, reason: str, detail: str) -> None:
        self.reasons[request.id] = reason


def engine(**flags: Any) -> EngineCore:
    """Blocks of 4, no watermark, up to 64 tokens a step and a sequence."""
    given = {"block_size": BLOCK, "num_gpu_blocks_override": 50, "max_model_len": 64, "max_num_seqs": 8, **flags}
    given.setdefault("max_num_batched_tokens", 64)
    return EngineCore(VllmV0(**given).spec(UNKNOWN_HARDWARE), Ends())


def submit(core: EngineCore, name: str, prompt: int, outputs: int, **more: Any) -> Request:
    request = Request(name, prompt_tokens=prompt, max_tokens=outputs, **more)
    core.submit(request, stop_after=outputs)
    return request


def step(core: EngineCore) -> BatchPlan:
    plan = core.plan_step()
    assert plan is not None
    core.cut(plan, 1)
    core.commit_step(plan, 1)
    core.check_invariants()
    return plan


def ids(requests: Any) -> list[str]:
    return [request.id for request in requests]


def chunks(plan: BatchPlan) -> list[tuple[str, int, int]]:
    """(request, tokens, context) of each prefill chunk."""
    return [(item.request.id, item.tokens, item.context) for item in plan.items]


# -- prefills


def test_without_chunks_a_prompt_waits_until_it_fits_the_step_whole() -> None:
    """40 + 30 > 64: the second runs in a step of its own, before anybody decodes."""
    core = engine()
    submit(core, "a", 40, 5)
    submit(core, "b", 30, 5)
    assert chunks(step(core)) == [("a", 40, 0)]
    assert chunks(step(core)) == [("b", 30, 0)]
    assert step(core).decode_requests == 2


def test_the_watermark_stays_free_also_when_nothing_runs() -> None:
    """10 blocks, 2 of them the watermark: 8 blocks of prompt start, 9 never can, and are refused when looked at."""
    core = engine(num_gpu_blocks_override=10, watermark=0.2)
    submit(core, "fits", 32, 1)
    too_long = submit(core, "too long", 33, 1)
    assert too_long in list(core.waiting)
    assert chunks(step(core)) == [("fits", 32, 0)]
    assert too_long.state is State.REJECTED
    assert core.observer.reasons["too long"] == "prompt > KV"  # type: ignore[attr-defined]


def test_who_can_never_start_ends_also_when_the_slots_are_taken() -> None:
    """The scan refuses it before it comes to slots and budget."""
    core = engine(num_gpu_blocks_override=10, max_num_seqs=1)
    submit(core, "runs", 4, 9)
    step(core)
    never = submit(core, "never", 41, 1)
    submit(core, "waits", 4, 1)
    plan = step(core)
    assert never.state is State.REJECTED
    assert plan.deferred is not None
    assert plan.deferred.reason == "no sequence slot"


# -- swapping


def two_of_three_swapped(**flags: Any) -> EngineCore:
    """Three requests of 12 tokens in 9 blocks: in their first decode only the first gets its block.

    a wants one: c goes (3 blocks free), a takes 1; b takes 1 of 2; nobody needs more. So c alone is swapped.
    """
    core = engine(num_gpu_blocks_override=9, num_cpu_blocks_override=9, preemption_mode="swap", **flags)
    for name in "abc":
        submit(core, name, 12, 8)
    step(core)
    step(core)
    assert ids(core.swapped) == ["c"]
    return core


def test_nobody_new_is_let_in_while_somebody_is_swapped() -> None:
    """One block is free and the newcomer needs one: still it waits until nobody is swapped any more."""
    core = two_of_three_swapped()
    assert core.store.free_blocks == 1
    submit(core, "new", 3, 1)
    plan = step(core)
    assert plan.deferred is not None
    assert plan.deferred.reason == "swapped requests come first"
    assert ids(core.waiting) == ["new"]
    while core.swapped:
        assert step(core).items == []
        assert ids(core.waiting) == ["new"]
    plan = step(core)  # c has taken the last block
    assert plan.deferred is not None
    assert plan.deferred.reason == "not enough free blocks"


def test_with_chunks_the_new_may_pass_the_swapped() -> None:
    """`_schedule_chunked_prefill` asks for no such thing."""
    core = two_of_three_swapped(enable_chunked_prefill=True)
    submit(core, "new", 3, 1)
    assert chunks(step(core)) == [("new", 3, 0)]
    assert ids(core.swapped) == ["c"]


# -- chunks


def test_a_victim_is_not_let_in_again_in_the_same_chunked_step() -> None:
    """Its blocks are free and it would fit; vLLM puts victims back into the queue behind the scan."""
    core = engine(num_gpu_blocks_override=5, enable_chunked_prefill=True)
    submit(core, "a", 8, 8)
    submit(core, "b", 8, 8)
    step(core)
    plan = step(core)  # a takes the fifth block, b lacks one and gives way
    assert ids(plan.preempted) == ["b"]
    assert (plan.items, ids(core.waiting), core.store.free_blocks) == ([], ["b"], 2)


def test_a_chunk_that_goes_on_needs_a_free_block_unless_its_prompt_fills_whole_blocks() -> None:
    """`get_num_blocks_touched_by_append_slots` of no tokens is 1 in a partly filled block, 0 in none."""
    for prompt, goes_on in ((30, False), (32, True)):
        core = engine(num_gpu_blocks_override=8, max_num_batched_tokens=16, max_num_seqs=4, enable_chunked_prefill=True)
        request = submit(core, "long", prompt, 1)
        assert chunks(step(core)) == [("long", 16, 0)]
        assert core.store.free_blocks == 0
        plan = core.plan_step()
        assert plan is not None
        assert bool(plan.items) is goes_on
        assert (request in core.running) is goes_on


def test_the_list_after_a_chunked_step() -> None:
    """Who came back stands in front, then decodes, then prefills, then the new; a prefill never stays before a decode.

    The long prompt is swapped out half-way, as the pool shrinks for one step, and comes back.
    """
    core = engine(max_num_batched_tokens=16, preemption_mode="swap", enable_chunked_prefill=True)
    submit(core, "a", 16, 20)
    submit(core, "long", 33, 3)
    step(core)
    assert chunks(step(core)) == [("long", 15, 0)]
    core.resize(6)
    assert ids(step(core).preempted) == ["long"]
    assert core.host.held_blocks(core.swapped.first()) == 9  # those of the whole prompt
    core.resize(50)
    assert chunks(step(core)) == [("long", 15, 15)]
    assert ids(core.running) == ["long", "a"]
    submit(core, "b", 3, 3)
    assert chunks(step(core)) == [("long", 3, 30), ("b", 3, 0)]
    assert ids(core.running) == ["a", "long", "b"]


# -- the prefix cache


def shared(blocks: int) -> Content:
    return Content(tuple(range(blocks)), shared_blocks=blocks, owner=0)


def test_a_whole_hit_takes_all_its_blocks_and_computes_one_token() -> None:
    """V1 would compute the last block again, in a block of its own."""
    core = engine(enable_prefix_caching=True)
    submit(core, "first", 12, 9, content=shared(3))
    step(core)
    free = core.store.free_blocks
    submit(core, "again", 12, 9, content=shared(3))
    assert chunks(step(core)) == [("again", 1, 11)]
    assert core.store.free_blocks == free


def test_cached_tokens_cost_no_budget_but_count_as_required_blocks() -> None:
    """40 tokens, 36 of them cached, fit beside 60 others; with 9 free blocks for 10 they must wait, hit or not."""
    core = engine(enable_prefix_caching=True)
    submit(core, "first", 36, 1, content=shared(9))
    step(core)
    submit(core, "others", 60, 1)
    submit(core, "hits", 40, 1, content=shared(9))
    assert chunks(step(core)) == [("others", 60, 0), ("hits", 4, 36)]
    core = engine(enable_prefix_caching=True, num_gpu_blocks_override=19)
    submit(core, "first", 37, 9, content=shared(9))
    step(core)  # holds 10 of 19 blocks
    submit(core, "hits", 40, 1, content=shared(9))
    plan = step(core)
    assert (plan.items, plan.decode_requests) == ([], 1)
    assert plan.deferred is not None
    assert plan.deferred.reason == "not enough free blocks"


def test_with_chunks_and_a_cache_what_is_left_is_rounded_down_to_blocks() -> None:
    """One decode leaves 15 of 16 tokens: 12 for a chunk. Then 3 are left, too few for anybody."""
    core = engine(enable_prefix_caching=True, enable_chunked_prefill=True, max_num_batched_tokens=16)
    submit(core, "decodes", 4, 9)
    step(core)
    submit(core, "long", 30, 2)
    submit(core, "short", 2, 2)
    assert chunks(step(core)) == [("long", 12, 0)]
    assert chunks(step(core)) == [("long", 12, 12)]
    assert chunks(step(core)) == [("long", 6, 24), ("short", 2, 0)]


# -- the priority policy


def test_an_urgent_request_interrupts_in_one_step_and_starts_in_the_next() -> None:
    """Both slots are taken: the least urgent running request gives way to the head, which was last to arrive."""
    core = engine(scheduling_policy="priority", max_num_seqs=2)
    submit(core, "low", 4, 20, priority=5, arrival_ns=1)
    submit(core, "middle", 4, 20, priority=3, arrival_ns=2)
    step(core)
    submit(core, "urgent", 4, 20, priority=0, arrival_ns=3)
    plan = step(core)
    assert ids(plan.preempted) == ["low"]
    assert (plan.decode_requests, ids(core.running), ids(core.waiting)) == (1, ["middle"], ["urgent", "low"])
    assert chunks(step(core)) == [("urgent", 4, 0)]


def test_the_queue_is_sorted_only_where_nobody_was_let_in() -> None:
    """The urgent one stands behind the other in the scan that finds it new; then both lists are sorted by urgency."""
    core = engine(scheduling_policy="priority", max_num_seqs=3)
    submit(core, "b", 4, 20, priority=2, arrival_ns=1)
    submit(core, "a", 4, 20, priority=1, arrival_ns=2)
    step(core)
    assert ids(core.running) == ["b", "a"]
    submit(core, "late", 4, 20, priority=3, arrival_ns=3)
    submit(core, "urgent", 4, 20, priority=0, arrival_ns=4)
    step(core)
    assert (ids(core.running), ids(core.waiting)) == (["b", "a", "late"], ["urgent"])
    step(core)
    assert (ids(core.running), ids(core.waiting)) == (["a", "b"], ["urgent", "late"])


def test_nobody_is_interrupted_by_an_equal_or_for_one_who_fits() -> None:
    core = engine(scheduling_policy="priority", max_num_seqs=1)
    submit(core, "runs", 4, 20, priority=1, arrival_ns=1)
    step(core)
    submit(core, "equal", 4, 20, priority=1, arrival_ns=2)
    assert step(core).preempted == []
    core = engine(scheduling_policy="priority", max_num_seqs=2)
    submit(core, "runs", 4, 20, priority=1, arrival_ns=1)
    step(core)
    submit(core, "urgent", 4, 20, priority=0, arrival_ns=2)
    assert chunks(step(core)) == [("urgent", 4, 0)]


def test_with_chunks_priorities_are_not_looked_at() -> None:
    core = engine(scheduling_policy="priority", max_num_seqs=1, enable_chunked_prefill=True)
    submit(core, "low", 4, 20, priority=5, arrival_ns=1)
    step(core)
    submit(core, "middle", 4, 20, priority=3, arrival_ns=2)
    submit(core, "urgent", 4, 20, priority=0, arrival_ns=3)
    assert step(core).preempted == []
    assert ids(core.waiting) == ["middle", "urgent"]


# -- stretches


@pytest.mark.parametrize("flags", [{}, {"enable_chunked_prefill": True}, {"scheduling_policy": "priority"}])
def test_a_long_decode_is_a_handful_of_plans(flags: dict[str, Any]) -> None:
    """Also with a head that waits for blocks, and one that waits for the slot."""
    core = engine(**flags, num_gpu_blocks_override=20, max_num_seqs=2)
    submit(core, "long", 4, 50, arrival_ns=1)
    steps = []
    while (plan := core.plan_step()) is not None:
        core.commit_step(plan, plan.steps)
        steps.append(plan.steps)
        if len(steps) == 1:
            submit(core, "head", 60, 1, arrival_ns=2)
            submit(core, "behind", 4, 1, arrival_ns=3)
    assert sum(steps) >= 50
    assert len(steps) <= 8
