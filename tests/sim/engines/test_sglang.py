"""SGLang: what its recordings do not pin, in made cases with worked-out values; its flags; its stretches."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sim.core.engine import EngineCore
from sim.core.lifecycle import State
from sim.core.observer import Observer
from sim.core.plan import BatchPlan
from sim.core.request import Request
from sim.core.spec import Quirk
from sim.engines import UNKNOWN_HARDWARE, Hardware
from sim.engines.sglang import Sglang
from sim.kv.content import Content
from sim.kv.radix import RadixStore
from sim.kv.store import CountingStore
from sim.policies.arrange import LongestOutputFirst
from sim.policies.order import Fcfs
from sim.policies.ratio import NewTokenRatio


class Reasons(Observer):
    def __init__(self) -> None:
        self.of: dict[str, str] = {}

    def ended(self, request: Request, reason: str, detail: str) -> None:
        self.of[request.id] = reason


def engine(**flags: Any) -> EngineCore:
    return EngineCore(Sglang(**flags).spec(UNKNOWN_HARDWARE), Reasons())


def submit(core: EngineCore, name: str, prompt: int, outputs: int, *, stop_after: int | None = None) -> Request:
    """All prompts differ."""
    request = Request(name, prompt_tokens=prompt, max_tokens=outputs, content=Content((), shared_blocks=0, owner=0))
    core.submit(request, stop_after=stop_after or outputs)
    return request


def plan_next(core: EngineCore, steps: int | None = None) -> BatchPlan:
    plan = core.plan_step()
    assert plan is not None
    if steps is not None:
        core.cut(plan, steps)
    core.commit_step(plan, plan.steps)
    core.check_invariants()
    return plan


def prefilled(plan: BatchPlan) -> list[tuple[str, int]]:
    return [(item.request.id, item.tokens) for item in plan.items]


def ratio_of(core: EngineCore) -> float:
    assert isinstance(core.admission, NewTokenRatio)
    return core.admission.ratio


# -- admission


@pytest.mark.parametrize(("pool", "gets_in"), [(165, False), (166, True)])
def test_a_candidate_pays_in_full_and_must_leave_something(pool: int, gets_in: bool) -> None:
    """`a` holds 20 and may write 49 more, of which 0.7 * 49 = 34.3 are expected; `b` needs 20 + 90 + 1 = 111.

    Free are 145 or 146: 110.7 < 111 < 111.7. Discounted, `b` would need 84.
    """
    core = engine(max_total_tokens=pool)
    submit(core, "a", 20, 50)
    plan_next(core)
    submit(core, "b", 20, 90)
    assert prefilled(plan_next(core)) == ([("b", 20)] if gets_in else [])


def test_what_is_needed_must_be_less_than_what_is_left() -> None:
    """Two equal requests at once: each needs, and is charged, 10 + 1 + 20. 31 are not less than 62 - 31."""
    for pool, both in ((62, False), (63, True)):
        core = engine(max_total_tokens=pool)
        submit(core, "a", 10, 20)
        submit(core, "b", 10, 20)
        assert len(prefilled(plan_next(core))) == (2 if both else 1)


def test_who_comes_back_is_tested_for_the_rest_of_his_answer_and_charged_for_all_of_it() -> None:
    """Known 30 + 40, 10 of 50 to come: needs 70 + 10 + 1 = 81 < 100, and is charged 70 + 1 + 50 = 121 > 100.

    So nobody is let in behind him in that scan, however small.
    """
    core = engine(max_total_tokens=100, clip=4096)
    back = Request("back", prompt_tokens=30, max_tokens=50, content=Content((), shared_blocks=0, owner=0))
    back.outputs = 40
    core.submit(back, stop_after=50)
    submit(core, "small", 1, 1)
    assert prefilled(plan_next(core)) == [("back", 70)]
    assert core.latched


def test_the_latch_holds_until_somebody_leaves() -> None:
    """`small` would fit all along, but is looked at only when `a` is gone: a named quirk."""
    core = engine(max_total_tokens=200)
    submit(core, "a", 20, 100, stop_after=30)
    plan_next(core)
    big = submit(core, "big", 80, 100)
    assert prefilled(plan_next(core)) == []
    core.cancel(big)
    submit(core, "small", 1, 1)
    assert core.why_ignored(next(iter(core.waiting))) is not None
    plan = plan_next(core)
    assert (prefilled(plan), plan.steps) == ([], 28)
    assert prefilled(plan_next(core)) == [("small", 1)]
    assert Quirk.LATCH_IDLES in core.spec.quirks


def test_a_chunk_in_flight_goes_on_while_the_latch_is_closed() -> None:
    """Others are not looked at then, though there is room in its last step."""
    core = engine(max_total_tokens=400, chunked_prefill_size=32)
    submit(core, "decodes", 8, 100)
    plan_next(core)
    submit(core, "long", 80, 10)
    assert prefilled(plan_next(core)) == [("long", 32)]
    core.latched = True
    submit(core, "small", 1, 1)
    assert prefilled(plan_next(core)) == [("long", 32)]
    assert prefilled(plan_next(core)) == [("long", 16)]
    assert [request.id for request in core.waiting] == ["small"]


def test_with_nobody_decoding_the_latch_holds_nobody_back() -> None:
    """`_get_new_batch_prefill_raw`: an empty running batch has nobody left to leave."""
    core = engine(max_total_tokens=400, chunked_prefill_size=32)
    submit(core, "long", 40, 10)
    assert prefilled(plan_next(core)) == [("long", 32)]
    core.latched = True
    submit(core, "small", 1, 1)
    assert prefilled(plan_next(core)) == [("long", 8), ("small", 1)]


def test_a_chunk_gets_on_where_nothing_is_left_for_it() -> None:
    """Running requests are expected to write more than there is: the chunk gets its full size all the same."""
    core = engine(max_total_tokens=260, chunked_prefill_size=32)
    for number in range(2):
        submit(core, f"r{number}", 10, 60)
    plan_next(core)
    submit(core, "long", 60, 50)
    assert prefilled(plan_next(core)) == [("long", 32)]
    assert isinstance(core.admission, NewTokenRatio)
    core.admission._set(1.7)  # 2 * 59 * 1.7 = 200.6 of 208 free; with 4 expected: 7 left
    assert prefilled(plan_next(core)) == [("long", 7)]
    core.admission._set(2.0)  # 236 of 201 free
    assert prefilled(plan_next(core)) == [("long", 21)]


# -- mixed chunks


def test_decodes_join_prefills_where_chunks_are_mixed() -> None:
    """They are taken off the chunk first, and such a step does not lower the ratio; a step of decodes alone does."""
    core = engine(enable_mixed_chunk=True, chunked_prefill_size=32, max_total_tokens=1000)
    submit(core, "a", 10, 20)
    submit(core, "b", 10, 20)
    plan_next(core)
    submit(core, "long", 50, 20)
    plan = plan_next(core)
    assert (prefilled(plan), plan.decode_requests) == ([("long", 30)], 2)
    plan = plan_next(core)
    assert (prefilled(plan), plan.decode_requests) == ([("long", 20)], 2)
    assert ratio_of(core) == 0.7
    plan = plan_next(core, steps=1)
    assert (prefilled(plan), plan.decode_requests) == ([], 3)
    assert ratio_of(core) == 0.7 - 0.7 * 0.86 / 600


# -- retraction


def test_what_a_retracted_request_wrote_does_not_enter_the_tree() -> None:
    """Both write from KV 10 and 20 on, until after 35 steps all 100 are taken. The victim, of equals the one with the
    longer prompt, frees 35 tokens, and comes back to its prompt alone, behind whoever came in between."""
    core = engine(max_total_tokens=100, schedule_conservativeness=0.02)
    submit(core, "stays", 10, 60)
    plan_next(core)
    victim = submit(core, "victim", 20, 50)
    plan_next(core)
    assert plan_next(core).steps == 35
    assert [request.id for request in plan_next(core).preempted] == ["victim"]
    store = core.store
    assert isinstance(store, RadixStore)
    assert (store.blank_blocks, store.cached_blocks) == (34, 20)
    submit(core, "later", 90, 1)
    assert [request.id for request in core.waiting] == ["victim", "later"]
    while victim.state is State.QUEUED:
        plan = plan_next(core)
    assert prefilled(plan) == [("victim", 36)]
    assert victim.hit_tokens == 20


def test_fewest_outputs_give_way() -> None:
    """`young` came last and has the shorter prompt, but has written less than `old`."""
    core = engine(max_total_tokens=80, schedule_conservativeness=0.02, disable_radix_cache=True)
    submit(core, "old", 20, 50)
    plan_next(core)
    plan_next(core, steps=10)
    young = submit(core, "young", 10, 30)
    plan_next(core)
    while young.state is State.RUNNING:
        plan = plan_next(core)
    assert [request.id for request in plan.preempted] == ["young"]


def test_the_last_one_ends_if_it_does_not_fit_alone() -> None:
    """A pool that has shrunk: nobody is left to give way."""
    core = engine(max_total_tokens=60)
    submit(core, "alone", 10, 40)
    plan_next(core)
    plan_next(core, steps=5)
    core.resize(15)
    assert core.plan_step() is None
    assert isinstance(core.observer, Reasons)
    assert core.observer.of == {"alone": "out of KV"}


# -- flags


def test_flags() -> None:
    """Where a flag is left open the hardware speaks; without a cache its orders are first come, first served."""
    hardware = Hardware(kv_tokens=1000, max_model_len=500)
    spec = Sglang(page_size=16).spec(hardware)
    store = spec.store(eviction=spec.eviction)
    assert (store.total_blocks, store.block_tokens, spec.max_model_len) == (62, 16, 498)
    assert spec.max_running == 496  # half the pool
    assert Sglang().spec(Hardware(kv_tokens=1_000_000, max_model_len=200_000)).max_running == 2560
    assert Sglang(max_running_requests=7).spec(hardware).max_running == 7
    assert isinstance(store, RadixStore)
    bare = Sglang(disable_radix_cache=True, schedule_policy="lpm").spec(hardware)
    assert isinstance(bare.store(), CountingStore)
    assert isinstance(bare.order, Fcfs)
    assert isinstance(Sglang(disable_radix_cache=True, schedule_policy="lof").spec(hardware).order, LongestOutputFirst)


@pytest.mark.parametrize(
    "wrong",
    [
        {"page_size": 0},
        {"schedule_policy": "hrrn"},
        {"chunked_prefill_size": 0},
        {"chunked_prefill_size": 100, "page_size": 16},
        {"max_queued": 1},
    ],
)
def test_wrong_flags(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=str(next(iter(wrong)))):
        Sglang(**wrong)


def test_a_full_queue_takes_nobody() -> None:
    core = engine(max_queued_requests=1)
    submit(core, "a", 10, 10)
    assert submit(core, "b", 10, 10).state is State.REJECTED


def test_answers_are_cut_at_the_pool() -> None:
    """With pages of 1: prompt + max_tokens + 1 must be less than the pool (`init_req_max_new_tokens`)."""
    core = engine(max_total_tokens=100)
    request = submit(core, "a", 40, 500)
    assert request.max_tokens == 58
    assert prefilled(plan_next(core)) == [("a", 40)]


# -- stretches


def test_a_lone_long_decode_is_two_plans() -> None:
    core = engine(max_total_tokens=10_000)
    submit(core, "a", 100, 5000)
    assert [plan_next(core).steps, plan_next(core).steps] == [1, 4999]


def test_a_blocked_head_costs_one_plan_more() -> None:
    """The step that refuses it, and one until somebody leaves: behind the latch nobody looks, whoever comes."""
    core = engine(max_total_tokens=6000)
    submit(core, "a", 100, 5000, stop_after=2000)
    plan_next(core)
    submit(core, "big", 1000, 4000)
    assert [plan_next(core).steps, plan_next(core).steps] == [1, 1998]


def test_no_slot_costs_none() -> None:
    core = engine(max_total_tokens=10_000, max_running_requests=1)
    submit(core, "a", 100, 2000)
    submit(core, "b", 100, 2000)
    assert [plan_next(core).steps for _ in range(4)] == [1, 1999, 1, 1999]


@pytest.mark.parametrize("off", [-1, "-1", "none", None])
def test_chunks_are_switched_off_as_sglang_does(off: Any) -> None:
    assert Sglang(chunked_prefill_size=off).chunked_prefill_size is None
