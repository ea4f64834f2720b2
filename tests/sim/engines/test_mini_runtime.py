"""What no recording of mini-runtime pins, as made cases with worked-out values (blocks of 16 tokens)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sim import make_scenario, replay
from sim.core.engine import EngineCore
from sim.core.lifecycle import Event, State
from sim.core.plan import BatchPlan
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE, engine_config
from sim.engines.mini_runtime import MiniRuntime
from sim.kv.content import Content
from sim.kv.leaky import LeakyTreeStore
from sim.kv.leaky_tree import TreeDefect
from sim.results.columns import STATES


def engine(**flags: Any) -> EngineCore:
    core = EngineCore(MiniRuntime(**flags).spec(UNKNOWN_HARDWARE))
    assert isinstance(core.store, LeakyTreeStore)
    core.store.reclaims = []
    return core


def submit(core: EngineCore, name: str, prompt: int, outputs: int = 2, tokens: Sequence[int] = ()) -> Request:
    """`tokens`: names of its first tokens; the others are its own."""
    content = Content(tuple(tokens), shared_blocks=len(tokens), owner=0)
    request = Request(name, prompt_tokens=prompt, max_tokens=outputs, content=content)
    core.submit(request, stop_after=outputs)
    return request


def run_one(core: EngineCore) -> BatchPlan:
    plan = core.plan_step()
    assert plan is not None
    core.commit_step(plan, plan.steps)
    core.check_invariants()
    return plan


def run_all(core: EngineCore) -> list[BatchPlan]:
    plans = []
    while (plan := core.plan_step()) is not None:
        plans.append(plan)
        core.commit_step(plan, plan.steps)
        core.check_invariants()
    return plans


def names(plan: BatchPlan) -> list[str]:
    return [item.request.id for item in plan.items]


def forwards(plans: list[BatchPlan]) -> list[tuple[list[str], int, int]]:
    """(prompts computed, decodes, steps) of each."""
    return [(names(plan), plan.decode_requests, plan.steps) for plan in plans]


# -- iterations


def test_two_tokens_come_in_the_iteration_that_completes_a_prompt():
    """Prefill forward, then decode forward; an answer of one token has two."""
    core = engine()
    one, three = submit(core, "one", 20, 1), submit(core, "three", 20, 3)
    assert forwards(run_all(core)) == [(["one", "three"], 0, 1), ([], 2, 1), ([], 1, 1)]
    assert (one.outputs, three.outputs) == (2, 3)
    assert one.state is three.state is State.FINISHED


def test_slots_are_for_prompts_and_decodes_together():
    """Two slots, prompts of two chunks: the third comes in when the first two have left, with two decodes each."""
    core = engine(max_batch_size=2, max_tokens_per_prefill_chunk=16)
    for name in "abc":
        submit(core, name, 32, 2)
    assert forwards(run_all(core)) == [
        (["a", "b"], 0, 1),
        (["a", "b"], 0, 1),
        ([], 2, 1),
        (["c"], 0, 1),
        (["c"], 0, 1),
        ([], 1, 1),
    ]


def test_an_empty_chunk_needs_budget_that_is_left():
    """`new` uses up the iteration's 16 tokens; `cached`, for which nothing is to compute, waits for the next."""
    core = engine(max_tokens_per_prefill_step=16)
    submit(core, "old", 16, tokens=range(16))
    run_all(core)
    submit(core, "new", 16)
    submit(core, "cached", 16, tokens=range(16))
    plans = run_all(core)
    assert forwards(plans) == [(["new"], 0, 1), ([], 1, 1), (["cached"], 0, 1), ([], 1, 1)]
    assert [plan.shape.prefill for plan in plans if plan.items] == [((16, 0),), ((1, 16),)]


# -- admission


def test_leaves_are_evicted_one_by_one_until_a_prompt_fits():
    """Three blocks, two of them in the tree: a prompt of three evicts both leaves, the older one first."""
    core = engine(num_blocks=3)
    submit(core, "a", 10)
    run_all(core)
    submit(core, "b", 10)
    run_all(core)
    assert core.store.free_blocks == 1
    submit(core, "c", 40)
    assert names(run_one(core)) == ["c"]
    assert core.store.reclaims == [[0], [1]]


def test_what_a_prompt_matches_is_not_given_away_to_it():
    """Seven blocks: `a` left 2 in the tree, `c` 4, `d` runs in 1. `b` has the 2 of `a` and lacks 5.

    Evicting `c` frees 4, then `d`'s leaf frees nothing (it runs), nor does `a`'s (`b` holds it by now): `b` is lost.
    Had `a` been evicted before it was held, `b` would have found 6 blocks free.
    """
    core = engine(num_blocks=7)
    submit(core, "a", 32, tokens=range(32))
    run_all(core)
    submit(core, "c", 64)
    run_all(core)
    submit(core, "d", 10, 6)
    run_one(core)
    b = submit(core, "b", 112, tokens=range(32))
    while b.state is State.QUEUED:
        run_one(core)
    assert b.state is State.FAILED
    assert [leaf and len(leaf) for leaf in core.store.reclaims] == [4, 1, 2, None]
    assert core.store.free_blocks == 6


def test_behind_a_lost_request_the_queue_goes_on_in_the_next_iteration():
    """Twins leak one block of four (defect a): `large`, which needs all, is lost; `small` is let in after that."""
    core = engine(num_blocks=4)
    for name in ("twin", "other"):
        submit(core, name, 16, tokens=range(16))
    run_all(core)
    assert core.store.leaked_blocks == 1
    large, small = submit(core, "large", 64), submit(core, "small", 16)
    plan = run_one(core)
    assert (plan.items, plan.decode_requests) == ([], 0)
    assert (large.state, small.state) == (State.FAILED, State.QUEUED)
    assert names(run_one(core)) == ["small"]


def test_a_prompt_longer_than_the_pool_is_rejected_when_it_comes():
    """It could only be lost."""
    assert submit(engine(num_blocks=4), "r", 65).state is State.REJECTED


# -- leaving (case B8): in every state it is only noted


def test_who_leaves_the_queue_is_let_in_and_computed():
    core = engine(max_batch_size=1)
    submit(core, "runs", 16, 3)
    waits = submit(core, "waits", 16, 3)
    run_one(core)
    core.cancel(waits, Event.TIME_OUT, "queue timeout")
    assert waits.state is State.QUEUED
    run_all(core)
    assert (waits.state, waits.outputs) == (State.TIMED_OUT, 3)


def test_who_leaves_in_his_prefill_or_decode_keeps_slot_and_blocks_to_the_end():
    core = engine(max_batch_size=1, max_tokens_per_prefill_chunk=16)
    request = submit(core, "r", 32, 4)
    run_one(core)
    core.cancel(request, Event.CANCEL, "client")
    core.cancel(request, Event.TIME_OUT, "timeout")  # too late: it has left already
    while not request.decoding:
        run_one(core)
    assert core.used_blocks == 2
    run_all(core)
    assert (request.state, request.outputs) == (State.CANCELLED, 4)


def test_who_has_left_and_is_lost_has_left():
    """His client has heard what he has heard; a failure that he has not waited for changes nothing."""
    core = engine(num_blocks=4)
    submit(core, "runs", 40, 9)
    run_one(core)
    request = submit(core, "r", 40)
    core.cancel(request, Event.TIME_OUT, "timeout")
    run_all(core)
    assert request.state is State.TIMED_OUT


# -- flags


def test_the_default_timeout_is_for_requests_without_a_deadline():
    """One slot, steps of 0.1 s: the first answer takes 2.1 s, so the others wait longer than the 1 s of the engine."""
    row = {"prompt_tokens": 16, "output_tokens": 21, "max_tokens": 21}
    result = replay(
        make_scenario(
            {
                "workload": {"kind": "inline", "requests": [{**row, "timeout_s": 9.0}, row, {**row, "timeout_s": 9.0}]},
                "engine": {"preset": "mini-runtime", "max_batch_size": 1, "request_timeout": 1.0},
                "cost": {"kind": "linear", "a_s": 0.1, "b_s_per_token": 0.0},
            }
        )
    )
    assert [STATES[state].value for state in result.requests.state] == ["finished", "timed_out", "finished"]
    assert result.requests.end_ns[1] == 4_200_000_000  # computed to its end
    assert any("give up after 1 s" in note for note in result.notes)


def test_defects_are_mended_one_by_one():
    config = engine_config("mini-runtime", {"tree_empty_edges": "false"})
    assert isinstance(config, MiniRuntime)
    assert config.tree_defects == {*TreeDefect} - {TreeDefect.EMPTY_EDGES}
    assert MiniRuntime().tree_defects == {*TreeDefect}


@pytest.mark.parametrize(("mended", "leaked"), [(False, 1), (True, 0)])
def test_defect_a_reaches_the_tree(mended: bool, leaked: int):
    """Twins in one iteration: one block each, of which one leaks. The whole defect: tests/sim/kv/test_leaky.py."""
    core = engine(tree_inserts_stale=not mended)
    for name in ("twin", "other"):
        submit(core, name, 16, tokens=range(16))
    run_all(core)
    assert core.store.leaked_blocks == leaked


@pytest.mark.parametrize(("mended", "leaked"), [(False, 2), (True, 0)])
def test_defect_c_reaches_the_tree(mended: bool, leaked: int):
    """Prompts that part at token 8: a third one replaces both. The whole defect: tests/sim/kv/test_leaky.py."""
    core = engine(tree_empty_edges=not mended)
    for name, tokens in (("a", range(16)), ("b", [*range(8), *range(100, 108)]), ("c", [*range(8), *range(200, 208)])):
        submit(core, name, 16, tokens=tokens)
        run_all(core)
    assert core.store.leaked_blocks == leaked


# -- stretches


def test_a_long_decode_is_a_handful_of_plans():
    """Prefill, the decode of the same turn, and all the rest at once; also with somebody waiting for the slot."""
    for more in (0, 1):
        core = engine(max_batch_size=1)
        for name in ("r", "waits")[: 1 + more]:
            submit(core, name, 100, 5000)
        assert [plan.steps for plan in run_all(core)] == [1, 1, 4998] * (1 + more)


def test_stretches_end_where_blocks_must_be_evicted():
    """Four blocks, one in the tree: `r` fills two by itself, then one more step per plan that has to evict."""
    core = engine(num_blocks=4)
    submit(core, "old", 10)
    run_all(core)
    submit(core, "r", 16, 48)
    assert [plan.steps for plan in run_all(core)] == [1, 1, 31, 15]
    assert core.store.reclaims == [[0]]
