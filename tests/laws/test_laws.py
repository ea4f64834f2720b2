"""The laws of DESIGN §11 over random workloads, engines and pool sizes, with cancels and timeouts, through the driver.

Laws 1, 2, 4, 10 and 11 are checked by `CheckedLog` after every plan that is made and after every one that ran.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from sim.core import drafting as drafting_module
from sim.core.lifecycle import TERMINAL, State
from sim.core.spec import Quirk
from sim.results.columns import NEVER, STATES
from sim.testing.worlds import Run, World
from tests.laws.engines import ENGINES
from tests.laws.worlds import random_world, run

SEEDS = range(24)
LONG_SEEDS = range(1000, 2500)

each_engine = pytest.mark.parametrize("engine", ENGINES)


@pytest.fixture(autouse=True)
def _give_up_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worlds in which an engine preempts for ever shall not take for ever here."""
    monkeypatch.setattr(drafting_module, "NO_PROGRESS_PREEMPTIONS", 300)


@cache
def runs(engine: str) -> list[Run]:
    """Runs to the end; what the checks on the way find fails the first test that asks."""
    return [run(random_world(engine, seed)) for seed in SEEDS]


def state_of(one: Run, row: int) -> State:
    return STATES[one.columns.state[row]]


# -- laws on the way


@each_engine
def test_law_01_every_request_is_somewhere(engine: str):
    """offered = ended (in five ways) + queued + running, after every plan (checked there) and at the end."""
    for one in runs(engine):
        ended = sum(one.log.terminal_events.values())
        assert len(one.requests) == len(one.world.rows)
        assert len(one.requests) == ended + one.core.num_waiting + len(one.core.running) + len(one.core.swapped)


@each_engine
def test_law_02_one_terminal_event_each(engine: str):
    """A run that was not stopped and did not stall ends every request exactly once, and the books say the same."""
    for one in runs(engine):
        for request in one.requests:
            assert (request.state in TERMINAL) == (one.log.terminal_events[request.id] == 1)
            assert state_of(one, request.row) is request.state
            if one.outcome.stalled is None:
                assert request.state in TERMINAL


@each_engine
def test_law_03_the_clock_never_goes_back(engine: str):
    """Every step takes time and starts when the one before is over, or later."""
    for one in runs(engine):
        steps, before = one.log.steps, 0
        ends = iter(steps.ends_ns)
        for start_ns, scheduled_ns, num_steps in zip(steps.start_ns, steps.scheduled_ns, steps.steps, strict=True):
            assert scheduled_ns <= start_ns
            assert before <= start_ns
            before = start_ns
            for end_ns in (next(ends) for _ in range(num_steps)):
                assert end_ns > before
                before = end_ns


@each_engine
def test_law_04_everything_is_back_at_the_end(engine: str):
    """used + free + cached = usable on the way (checked there); at the end nothing is used or reserved.

    A cache that leaks (quirk) still has what entered it, and nothing beside that.
    """
    for one in runs(engine):
        store = one.core.store
        if one.outcome.stalled is None:
            kept = store.retained_blocks if Quirk.CACHE_LEAKS in one.world.spec.quirks else 0
            assert one.core.idle
            assert store.free_blocks + kept == store.total_blocks
            assert one.core.reserved_blocks == 0
        assert 0 <= one.core.peak_used_blocks <= one.core.most_blocks


@each_engine
def test_law_05_times_are_in_order(engine: str):
    """arrival ≤ admitted ≤ first token ≤ … ≤ last token ≤ end, and as many tokens as the books say."""
    for one in runs(engine):
        for row, given in enumerate(one.world.rows):
            admitted, end = one.columns.admitted_ns[row], one.columns.end_ns[row]
            tokens = one.token_times_ns(row)
            times = [given.arrival_ns, *([admitted] if admitted != NEVER else []), *tokens]
            assert times == sorted(times)
            assert len(set(tokens)) == len(tokens) == one.columns.output_tokens[row]
            if tokens:
                assert admitted != NEVER
            if end != NEVER:
                assert times[-1] <= end


@each_engine
def test_law_05_answers_are_whole(engine: str):
    """A finished answer has min(stop, max_tokens) tokens and ends with the last; nobody else has that many.

    Quirks: nobody looks at the first token; who has left is computed to the end.
    """
    for one in runs(engine):
        quirks = one.world.spec.quirks
        fewest = 2 if Quirk.FIRST_TOKEN_NOT_CHECKED in quirks else 1
        for row, given in enumerate(one.world.rows):
            whole = max(fewest, min(given.stop_after, one.requests[row].max_tokens))
            if state_of(one, row) is State.FINISHED:
                assert one.columns.output_tokens[row] == whole
                assert one.columns.end_ns[row] == one.token_times_ns(row)[-1]
            elif Quirk.LEAVERS_RUN_ON in quirks:
                assert one.columns.output_tokens[row] <= whole
            else:
                assert one.columns.output_tokens[row] < whole


@each_engine
def test_departures_are_on_time(engine: str):
    """Who waits leaves at once, who runs at the end of his step and without its token; ties go to leaving.

    With the quirk that leavers run on, they have left when the engine is through with them.
    """
    for one in runs(engine):
        runs_on = Quirk.LEAVERS_RUN_ON in one.world.spec.quirks
        ends = list(one.log.steps.ends_ns)
        for row, given in enumerate(one.world.rows):
            delays = [delay for delay in (given.cancel_after_ns, given.timeout_ns) if delay >= 0]
            leaves_ns = given.arrival_ns + min(delays) if delays else None
            queue_ns = given.arrival_ns + given.queue_timeout_ns if given.queue_timeout_ns >= 0 else None
            end, state = one.columns.end_ns[row], state_of(one, row)
            if state is State.FINISHED and leaves_ns is not None:
                assert end < leaves_ns
            if one.columns.admitted_ns[row] != NEVER and queue_ns is not None and not runs_on:
                assert one.columns.admitted_ns[row] < queue_ns
            if state not in (State.CANCELLED, State.TIMED_OUT):
                continue
            if runs_on:
                assert end >= min(moment for moment in (leaves_ns, queue_ns) if moment is not None)
                continue
            if one.columns.admitted_ns[row] == NEVER:
                assert end == min(moment for moment in (leaves_ns, queue_ns) if moment is not None)
                assert one.token_times_ns(row) == []
                continue
            assert leaves_ns is not None
            assert leaves_ns <= end
            assert end == leaves_ns or end == next(moment for moment in ends if moment >= leaves_ns)
            assert all(moment < leaves_ns for moment in one.token_times_ns(row))


@each_engine
def test_law_07_never_idle_with_somebody_there(engine: str):
    """Where one step is over and the next has not begun, nobody was alive, or memory was short."""
    for one in runs(engine):
        steps = one.log.steps
        before, gaps, at = 0, [], 0
        for start_ns, num_steps in zip(steps.start_ns.tolist(), steps.steps, strict=True):
            if start_ns > before:
                gaps.append((before, start_ns))
            at += num_steps
            before = steps.ends_ns[at - 1] if num_steps else before
        for row, given in enumerate(one.world.rows):
            end = one.columns.end_ns[row]
            for start_ns, stop_ns in gaps:
                if short_of_memory(one, start_ns, stop_ns):
                    continue
                here_until_ns = stop_ns if end == NEVER else min(end, stop_ns)
                assert max(given.arrival_ns, start_ns) >= here_until_ns, f"{row} waits and nothing runs"


def short_of_memory(one: Run, start_ns: int, stop_ns: int) -> bool:
    """Whether the pool was smaller than it is at its best at any time from `start_ns` to `stop_ns`."""
    usual = one.world.spec.store().total_blocks
    whole = max([usual, *(blocks for _, blocks in one.world.capacity_events)])
    changes = [(0, usual), *one.world.capacity_events, (max(stop_ns, one.outcome.end_ns), whole)]
    return any(
        blocks < whole and since_ns < stop_ns and until_ns > start_ns
        for (since_ns, blocks), (until_ns, _) in pairwise(changes)
    )


# -- laws on two runs


@each_engine
def test_law_06_same_input_same_result(engine: str):
    """Two runs of one world are the same in every figure."""
    for one in runs(engine)[:15]:
        assert run(one.world).facts() == one.facts()


@each_engine
def test_law_08_nobody_sees_the_truth(engine: str):
    """A longer answer changes nothing before the moment at which the shorter one would have ended."""
    for one in runs(engine)[:30]:
        if one.outcome.stalled is not None:
            continue
        rows = one.world.rows
        for row in range(0, len(rows), 5):
            longer = replace(rows[row], stop_after=rows[row].stop_after + 5)
            other = run(replace(one.world, rows=(*rows[:row], longer, *rows[row + 1 :])))
            until_ns = one.columns.end_ns[row]
            assert before(one, until_ns) == before(other, until_ns)


def before(one: Run, until_ns: int) -> dict[str, object]:
    """What had come out by then (tokens and step ends; at that very moment the answers may differ)."""
    return {
        "step ends": [end_ns for end_ns in one.log.steps.ends_ns if end_ns <= until_ns],
        "tokens": [[t for t in one.token_times_ns(row) if t < until_ns] for row in range(len(one.world.rows))],
        "admitted": [t for t in one.columns.admitted_ns if NEVER < t < until_ns],
    }


def assert_law_12(world: World) -> None:
    free = run(world).facts()
    for max_stretch in (1, 3):
        assert run(world, max_stretch=max_stretch).facts() == free


@each_engine
def test_law_12_splitting_stretches_changes_nothing(engine: str):
    """Steps one by one, three by three or as many as there are: the same books, bit for bit."""
    for seed in SEEDS:
        assert_law_12(random_world(engine, seed))


@each_engine
def test_law_12_also_where_a_run_is_stopped(engine: str):
    """A limit of time or steps in the middle of a stretch leaves what single steps would have left."""
    for seed in SEEDS:
        assert_law_12(random_world(engine, seed + 500, stops=True))


@pytest.mark.long
@each_engine
def test_laws_12_and_those_on_the_way_longer(engine: str):
    """More worlds."""
    for seed in LONG_SEEDS:
        assert_law_12(random_world(engine, seed, stops=seed % 4 == 0))


def test_law_09_endless_preemption_is_noticed():
    """An engine that preempts and resumes for ever is stopped, and the run says what happened."""
    stalled = [one.outcome.stalled for one in runs("textbook") if one.outcome.stalled]
    assert stalled
    assert all("preemptions without a token" in why for why in stalled)


def test_worlds_are_worth_it():
    """The worlds preempt, hit, evict, end in every way and stretch; so the laws above are not about nothing."""
    states, preempted, hit, evicted, rejected = set(), 0, 0, 0, 0
    for engine in ENGINES:
        for one in runs(engine):
            states |= {state_of(one, row) for row in range(len(one.world.rows))}
            preempted += sum(one.columns.preemptions)
            hit += sum(tokens > 0 for tokens in one.columns.hit_tokens)
            evicted += one.core.store.evicted_blocks
            rejected += len(one.columns.reason)
    assert states >= TERMINAL
    assert min(preempted, hit, evicted, rejected) > 100
