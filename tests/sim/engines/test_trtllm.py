"""TensorRT-LLM presets: worked-out cases of what no recording shows (ENGINES §3), and how far their plans reach.

Blocks of 4 tokens throughout.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sim.core.admit import BATCH_RUNS, BEHIND, NO_CHUNK
from sim.core.engine import EngineCore
from sim.core.lifecycle import State
from sim.core.plan import BatchPlan, Blocker, Verdict
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE
from sim.engines.trtllm import GuaranteedNoEvict, MaxUtilization, StaticBatch, TrtLlm

PRESETS: tuple[type[TrtLlm], ...] = (GuaranteedNoEvict, MaxUtilization, StaticBatch)
CHUNKS: dict[str, Any] = {"enable_chunked_prefill": True, "chunk_unit_size": 4}

Step = tuple[dict[str, int], list[str], list[str]]
"""Tokens by prompt in batch order; who generates; who is paused."""


def engine(preset: type[TrtLlm], **flags: Any) -> EngineCore:
    config = preset(**{"tokens_per_block": 4, "num_blocks": 100, **flags})
    return EngineCore(config.spec(UNKNOWN_HARDWARE))


def submit(core: EngineCore, name: str, prompt: int, asked: int) -> Request:
    request = Request(name, prompt_tokens=prompt, max_tokens=asked)
    core.submit(request, stop_after=asked)
    return request


def run_one(core: EngineCore) -> BatchPlan:
    plan = core.plan_step()
    assert plan is not None
    core.check_invariants()
    core.commit_step(plan, plan.steps)
    return plan


def step(core: EngineCore) -> Step:
    """One step, whatever the plan could be."""
    decoding = [request for request in core.running if request.decoding]
    plan = core.plan_step()
    assert plan is not None
    served = decoding if plan.decodes is None else [request for request in decoding if request in plan.decodes]
    generation = [request.id for request in served if request.decoding] if plan.decode_requests else []
    core.cut(plan, 1)
    core.commit_step(plan, 1)
    core.check_invariants()
    return {item.request.id: item.tokens for item in plan.items}, generation, [each.id for each in plan.preempted]


# -- the micro-batch scheduler


def test_without_chunks_a_prompt_that_does_not_fit_the_tokens_ends_the_scan() -> None:
    """10 tokens a step: b's 6 do not fit behind a's 6, and c's 2, which would, stay behind b."""
    core = engine(GuaranteedNoEvict, max_num_tokens=10)
    for name, prompt in (("a", 6), ("b", 6), ("c", 2)):
        submit(core, name, prompt, 5)
    assert step(core) == ({"a": 6}, [], [])
    assert step(core) == ({"b": 6, "c": 2}, ["a"], [])


@pytest.mark.parametrize(("preset", "served"), [(MaxUtilization, []), (GuaranteedNoEvict, ["s"])])
def test_generation_behind_such_a_prompt_misses_the_step(preset: type[TrtLlm], served: list[str]) -> None:
    """In order of arrival: a, b, s, who generates. Under GUARANTEED_NO_EVICT generation is listed first."""
    core = engine(preset, max_num_tokens=10)
    submit(core, "a", 6, 5)
    submit(core, "b", 6, 5)
    core.place(Request("s", prompt_tokens=4, max_tokens=9), computed_tokens=4, output_tokens=1, stop_after=9)
    assert step(core) == ({"a": 6}, served, [])
    assert step(core) == ({"b": 6}, ["a", "s"], [])


def test_a_prompt_longer_than_a_step_is_refused_without_chunks() -> None:
    """9 tokens never fit 8; in chunks they do."""
    core = engine(GuaranteedNoEvict, max_num_tokens=8)
    long, short = submit(core, "long", 9, 5), submit(core, "short", 8, 5)
    assert step(core) == ({"short": 8}, [], [])
    assert (long.state, short.state) == (State.REJECTED, State.RUNNING)
    core = engine(GuaranteedNoEvict, max_num_tokens=8, **CHUNKS)
    submit(core, "long", 9, 5)
    assert [step(core)[0] for _ in range(2)] == [{"long": 8}, {"long": 1}]


def test_at_most_max_batch_size_in_a_step() -> None:
    """All three may run; c starts when a and b have had their three tokens."""
    core = engine(GuaranteedNoEvict, max_batch_size=2, max_num_requests=4)
    for name in "abc":
        submit(core, name, 4, 3)
    assert step(core) == ({"a": 4, "b": 4}, [], [])
    assert [step(core) for _ in range(2)] == [({}, ["a", "b"], [])] * 2
    assert step(core) == ({"c": 4}, [], [])


def test_generation_beyond_max_batch_size_misses_the_step() -> None:
    """Three generate, two take part: the first two, until they are over."""
    core = engine(MaxUtilization, max_batch_size=2, max_num_requests=4)
    for name in "abc":
        core.place(Request(name, prompt_tokens=4, max_tokens=3), computed_tokens=4, output_tokens=1, stop_after=3)
    assert [step(core)[1] for _ in range(4)] == [["a", "b"], ["a", "b"], ["c"], ["c"]]


@pytest.mark.parametrize(("most", "first_step"), [(3, {"a": 10, "c": 1}), (2, {"a": 10})])
def test_a_prompt_that_gets_no_tokens_has_its_place_in_the_batch(most: int, first_step: dict[str, int]) -> None:
    """11 tokens: a takes 10, and 1 is no whole unit for b; c wants 1, but is looked at only if three may take part."""
    core = engine(GuaranteedNoEvict, max_num_tokens=11, max_batch_size=most, max_num_requests=8, **CHUNKS)
    for name, prompt in (("a", 10), ("b", 10), ("c", 1)):
        submit(core, name, prompt, 5)
    assert step(core)[0] == first_step
    assert [request.id for request in core.waiting] == [name for name in "abc" if name not in first_step]


# -- the capacity scheduler


@pytest.mark.parametrize("flag", ["max_num_requests", "max_num_active_requests"])
def test_at_most_so_many_requests_run(flag: str) -> None:
    core = engine(GuaranteedNoEvict, **{flag: 1})
    submit(core, "a", 4, 2)
    submit(core, "b", 4, 2)
    assert [step(core) for _ in range(3)] == [({"a": 4}, [], []), ({}, ["a"], []), ({"b": 4}, [], [])]


@pytest.mark.parametrize("preset", [GuaranteedNoEvict, StaticBatch])
def test_the_last_token_has_its_place_reserved(preset: type[TrtLlm]) -> None:
    """Prompt 4, 5 tokens asked for: 9 tokens are 3 blocks, though the last token gets no KV and 2 would do."""
    for blocks, first_step in ((6, {"a": 4, "b": 4}), (5, {"a": 4})):
        core = engine(preset, num_blocks=blocks)
        submit(core, "a", 4, 5)
        submit(core, "b", 4, 5)
        assert step(core)[0] == first_step
    assert [step(core)[0] for _ in range(5)] == [{}, {}, {}, {}, {"b": 4}]
    core = engine(preset, num_blocks=2)
    decision = core.submit(Request("c", prompt_tokens=4, max_tokens=5), stop_after=1)
    assert (decision.verdict, decision.reason) == (Verdict.REJECT, "reservation > KV")


def test_chunks_under_max_utilization() -> None:
    """8 tokens a step, 6 blocks. a (12) takes 3 blocks with its first chunk; b (8), without tokens, takes none.

    Then b takes 2, and stands first, not being finished. a's 13th token takes the last block, b has to go for its own
    9th: what it has generated belongs to its prompt then, and that is 3 blocks of 2 that are free.
    """
    core = engine(MaxUtilization, num_blocks=6, max_num_tokens=8, **CHUNKS)
    submit(core, "a", 12, 20)
    submit(core, "b", 8, 20)
    seen = []
    for _ in range(5):
        seen.append((step(core), core.store.free_blocks))
    assert seen == [
        (({"a": 8}, [], []), 3),
        (({"b": 4, "a": 4}, [], []), 1),
        (({"b": 4}, ["a"], []), 0),
        (({}, ["a"], ["b"]), 2),
        (({}, ["a"], []), 2),
    ]


def test_a_prompt_past_its_first_chunk_can_be_paused() -> None:
    """5 blocks: a's prompt 1, b's 4. a's next token needs one, and b, half computed, is the last started."""
    core = engine(MaxUtilization, num_blocks=5, max_num_tokens=8, **CHUNKS)
    submit(core, "a", 4, 10)
    submit(core, "b", 16, 10)
    assert step(core) == ({"b": 4, "a": 4}, [], [])
    assert step(core) == ({}, ["a"], ["b"])
    assert core.store.free_blocks == 3


def test_a_begun_prompt_of_a_static_batch_waits_until_nobody_generates() -> None:
    """8 tokens a step: b's 12 are begun beside a's 4, and go on when a has had its 3 tokens."""
    core = engine(StaticBatch, max_num_tokens=8, **CHUNKS)
    submit(core, "a", 4, 3)
    submit(core, "b", 12, 2)
    assert [step(core) for _ in range(5)] == [
        ({"b": 4, "a": 4}, [], []),
        ({}, ["a"], []),
        ({}, ["a"], []),
        ({"b": 8}, [], []),
        ({}, ["b"], []),
    ]


# -- stretches


@pytest.mark.parametrize("preset", PRESETS)
def test_a_lone_decode_is_one_plan(preset: type[TrtLlm]) -> None:
    core = engine(preset, num_blocks=200)
    submit(core, "a", 4, 500)
    assert [run_one(core).steps for _ in range(2)] == [1, 499]
    assert core.idle


@pytest.mark.parametrize(
    ("preset", "blocker"),
    [(GuaranteedNoEvict, Blocker.BLOCKS), (MaxUtilization, Blocker.BLOCKS), (StaticBatch, Blocker.POLICY)],
)
def test_a_blocked_head_does_not_cut_it(preset: type[TrtLlm], blocker: Blocker) -> None:
    """199 of 200 blocks are free, and the head wants them all."""
    core = engine(preset, num_blocks=200)
    submit(core, "a", 4, 500)
    run_one(core)
    submit(core, "b", 796, 4)
    plan = run_one(core)
    assert plan.steps == 499
    assert plan.deferred is not None
    assert plan.deferred.blocker is blocker
    assert [item.request.id for item in run_one(core).items] == ["b"]


def test_arrivals_are_looked_at_if_they_may_start() -> None:
    """The first who waits is, nobody behind a blocked head is, and nobody beside a static batch."""
    core = engine(MaxUtilization, num_blocks=200)
    submit(core, "a", 4, 500)
    run_one(core)
    plan = core.plan_step()
    assert plan is not None
    assert core.why_ignored(submit(core, "b", 796, 4)) is None
    core.cut(plan, 1)
    core.commit_step(plan, 1)
    core.plan_step()
    assert core.why_ignored(submit(core, "c", 4, 4)) is BEHIND
    core = engine(StaticBatch)
    submit(core, "a", 4, 100)
    run_one(core)
    core.plan_step()
    assert core.why_ignored(submit(core, "b", 4, 4)) is BATCH_RUNS


def test_a_head_that_only_lacks_tokens_cuts_it_where_its_blocks_may_go() -> None:
    """a generates, which leaves 3 of 4 tokens; b wants 4. Reserved, its blocks stay; else each new block is a plan."""
    steps = {}
    for preset in (GuaranteedNoEvict, MaxUtilization):
        core = engine(preset, max_num_tokens=4)
        submit(core, "a", 2, 30)
        submit(core, "b", 4, 5)
        assert step(core)[0] == {"a": 2}
        plan = core.plan_step()
        assert plan is not None
        assert plan.deferred is NO_CHUNK
        steps[preset] = plan.steps
    assert steps == {GuaranteedNoEvict: 29, MaxUtilization: 2}


# -- flags


def test_flags_that_cannot_work_are_errors() -> None:
    with pytest.raises(ValidationError, match=r"chunk_unit_size must be <= max_num_tokens \(8\), got 16"):
        GuaranteedNoEvict(max_num_tokens=8, enable_chunked_prefill=True, chunk_unit_size=16)
    with pytest.raises(ValidationError, match="chunking_policy"):
        GuaranteedNoEvict(chunking_policy="SHORTEST")  # type: ignore[arg-type]


def test_the_pool_is_what_the_device_has() -> None:
    assert MaxUtilization().spec(UNKNOWN_HARDWARE).store().total_blocks == UNKNOWN_HARDWARE.kv_tokens // 32
