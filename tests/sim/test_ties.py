"""What comes first at one instant (DESIGN §2): cancels, timeouts, arrivals, then finishes, then scheduling.

Nothing random finds these, so they are written out. Every step takes 1,000 ns here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sim.core.lifecycle import State
from sim.engines import UNKNOWN_HARDWARE, VllmV1
from sim.results.columns import NEVER, STATES
from sim.testing.worlds import Row, Run, World
from tests.laws.costs import COSTS
from tests.laws.worlds import run

both = pytest.mark.parametrize("depth", [1, 2])


def row(arrival_ns: int, prompt: int, output: int, **leaving: int) -> Row:
    return Row(arrival_ns, prompt, output, output, priority=0, ids=(), **leaving)


def simulate(*rows: Row, depth: int = 1, **flags: Any) -> Run:
    """In stretches; step by step it must be the same."""
    config = VllmV1(async_scheduling=depth == 2, **{"enable_prefix_caching": False, "max_model_len": 1000, **flags})
    world = World(config.spec(UNKNOWN_HARDWARE), rows, COSTS["even"])
    result = run(world)
    assert run(world, max_stretch=1).facts() == result.facts()
    return result


def state(result: Run, at: int) -> State:
    return STATES[result.columns.state[at]]


LONG = row(0, 4, 20)


@both
def test_arrival_at_a_steps_end_is_in_the_next_plan(depth: int):
    """An arrival as a step ends is in the plan made then; with depth 2 one step more is taken already."""
    result = simulate(LONG, row(3000, 4, 5), depth=depth)
    assert result.columns.admitted_ns[1] == 3000
    assert result.token_times_ns(1)[0] == 3000 + 1000 * depth


@both
def test_arrival_inside_a_step_waits_for_its_end(depth: int):
    """Considered from step k + 1, with asynchronous scheduling from step k + 2."""
    result = simulate(LONG, row(2001, 4, 5), depth=depth)
    assert result.columns.admitted_ns[1] == 3000
    assert result.token_times_ns(1)[0] == 3000 + 1000 * depth


@both
def test_simultaneous_arrivals_find_an_idle_engine_together(depth: int):
    """All of one instant are in the first step, in input order, whatever was created first."""
    result = simulate(*(row(5000, 3, 2) for _ in range(4)), depth=depth)
    assert list(result.columns.admitted_ns) == [5000] * 4
    assert [result.token_times_ns(at)[0] for at in range(4)] == [6000] * 4
    assert result.log.steps.prefill_requests[0] == 4


@both
def test_input_order_among_simultaneous_arrivals(depth: int):
    """With one slot, the first row of an instant is served first."""
    result = simulate(row(5000, 3, 2), row(5000, 3, 2), depth=depth, max_num_seqs=1)
    assert result.columns.admitted_ns[0] == 5000 < result.columns.admitted_ns[1]


@both
@pytest.mark.parametrize("way", ["cancel_after_ns", "timeout_ns"])
def test_leaving_at_the_last_steps_end_wins(depth: int, way: str):
    """Who leaves exactly as his last token would come out does not get it; one instant later it is his."""
    answer = row(0, 4, 5)
    at_the_end = simulate(replace(answer, **{way: 5000}), depth=depth)
    assert state(at_the_end, 0) is (State.CANCELLED if way == "cancel_after_ns" else State.TIMED_OUT)
    assert at_the_end.token_times_ns(0) == [1000, 2000, 3000, 4000]
    assert at_the_end.columns.end_ns[0] == 5000
    later = simulate(replace(answer, **{way: 5001}), depth=depth)
    assert state(later, 0) is State.FINISHED
    assert later.token_times_ns(0)[-1] == later.columns.end_ns[0] == 5000


@both
def test_leaving_inside_a_step(depth: int):
    """Blocks and slot are kept up to the step's end, its token is not delivered, and the next step has the room."""
    result = simulate(row(0, 4, 20, cancel_after_ns=2500), row(0, 4, 3), depth=depth, max_num_seqs=1)
    assert result.token_times_ns(0) == [1000, 2000]
    assert result.columns.end_ns[0] == 3000
    assert result.columns.admitted_ns[1] == 3000


@both
def test_leaving_after_a_short_plan(depth: int):
    """Tokens of plans that were over before the step of the cancel are delivered (with depth 2 two plans are out)."""
    result = simulate(row(0, 1, 30, cancel_after_ns=6500), depth=depth)
    assert result.token_times_ns(0) == [1000, 2000, 3000, 4000, 5000, 6000]
    assert result.columns.output_tokens[0] == 6


@both
def test_two_ways_out_in_one_step(depth: int):
    """What comes first counts, and the request ends once."""
    result = simulate(row(0, 4, 20, cancel_after_ns=2700, timeout_ns=2300), depth=depth)
    assert state(result, 0) is State.TIMED_OUT
    assert simulate(row(0, 4, 20, cancel_after_ns=2300, timeout_ns=2300), depth=depth).columns.reason == {0: "client"}


@both
def test_queue_timeout_at_the_moment_it_could_start(depth: int):
    """A deadline reached as the slot becomes free has timed out; one instant later it is in time."""
    first = row(0, 4, 3)
    free_ns = 3000
    missed = simulate(first, row(0, 4, 3, queue_timeout_ns=free_ns), depth=depth, max_num_seqs=1)
    assert state(missed, 1) is State.TIMED_OUT
    assert missed.columns.end_ns[1] == free_ns
    assert missed.columns.admitted_ns[1] == NEVER
    made = simulate(first, row(0, 4, 3, queue_timeout_ns=free_ns + 1), depth=depth, max_num_seqs=1)
    assert state(made, 1) is State.FINISHED
    assert made.columns.admitted_ns[1] == free_ns


@both
def test_no_patience_at_all(depth: int):
    """A queue timeout of 0 is over before anybody is scheduled, even on an idle engine."""
    result = simulate(row(1000, 4, 3, queue_timeout_ns=0), row(1000, 4, 3), depth=depth)
    assert state(result, 0) is State.TIMED_OUT
    assert result.columns.admitted_ns[0] == NEVER
    assert result.columns.admitted_ns[1] == 1000


def test_cancel_goes_before_a_timeout_and_both_before_an_arrival():
    """At one instant one waiting request is cancelled, another times out, and only then a third one comes."""
    result = simulate(
        LONG,
        row(0, 4, 3, cancel_after_ns=4000, queue_timeout_ns=4000),
        row(0, 4, 3, queue_timeout_ns=4000),
        row(4000, 4, 3),
        max_num_seqs=1,
    )
    assert [state(result, at) for at in (1, 2)] == [State.CANCELLED, State.TIMED_OUT]
    assert result.columns.waiting_seen[3] == 0


@both
def test_finishes_go_before_scheduling(depth: int):
    """Blocks of who finishes at a step's end are there for who arrived at that same instant."""
    result = simulate(
        row(0, 8, 3), row(3000, 8, 2), depth=depth, block_size=4, num_gpu_blocks_override=4, max_model_len=12
    )
    assert result.columns.end_ns[0] == 3000
    assert result.columns.admitted_ns[1] == 3000


@both
def test_blocked_head_that_leaves_lets_others_in(depth: int):
    """A cancel of the waiting head inside a stretch ends it: whoever stood behind is looked at, at the step's end."""
    result = simulate(
        row(0, 4, 30),
        row(0, 46, 2, cancel_after_ns=7300),
        row(0, 4, 2),
        depth=depth,
        block_size=4,
        num_gpu_blocks_override=13,
        max_model_len=48,
    )
    assert result.columns.end_ns[1] == 7300
    assert result.columns.admitted_ns[2] == 8000


def test_a_stop_at_a_step_end():
    """A limit of time at a step's end includes that step."""
    world = World(VllmV1(async_scheduling=False).spec(UNKNOWN_HARDWARE), (LONG,), COSTS["even"])
    for limit_ns, tokens in ((4999, 4), (5000, 5), (5001, 5)):
        limited = replace(world, limits=replace(world.limits, max_time_ns=limit_ns))
        result = run(limited)
        assert result.columns.output_tokens[0] == len(result.token_times_ns(0)) == tokens
        assert result.outcome.end_ns == limit_ns
        assert run(limited, max_stretch=1).facts() == result.facts()
