"""The front door: who is refused, who waits outside and comes in when, and that stretches do not mind."""

from __future__ import annotations

from typing import Any

import pytest

from sim import make_scenario, replay
from sim.core.engine import EngineCore
from sim.core.front import Front, FrontLimits
from sim.core.plan import ADMIT, Blocker, Verdict
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE, Reference
from sim.results.columns import NEVER, NOT_YET, STATES
from sim.results.measure import Measured
from sim.results.metrics import compute
from sim.results.run import RunResult

MS = 1_000_000
FOREVER = 1 << 60


def run(rows: list[dict[str, Any]], front: dict[str, Any], *, max_stretch: int = FOREVER, **more: Any) -> RunResult:
    """Steps of 10 ms on `reference`."""
    description = {
        "workload": {"kind": "inline", "requests": rows},
        "engine": {"preset": "reference", "block_size": 4, "num_blocks": 100},
        "front": front,
        "cost": {"kind": "linear", "a_s": 0.01, "b_s_per_token": 0.0},
        **more,
    }
    return replay(make_scenario(description), max_stretch=max_stretch)


def request(outputs: int = 10, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": 4, "output_tokens": outputs, "max_tokens": outputs, **more}


def states(result: RunResult) -> list[str]:
    return [STATES[state].value for state in result.requests.state]


@pytest.mark.parametrize(
    ("limits", "accepted", "reason", "detail"),
    [
        ({"max_in_flight": 3}, 3, "queue full: max_in_flight", "3 inside, max_in_flight is 3"),
        ({"max_waiting": 2}, 2, "queue full: max_waiting", "2 inside, max_waiting is 2"),
        ({"max_waiting_tokens": 18}, 4, "queue full: max_waiting_tokens", "16 inside, max_waiting_tokens is 18"),
        ({"max_waiting_tokens": 1}, 1, "queue full: max_waiting_tokens", "4 inside, max_waiting_tokens is 1"),
        (
            {"max_waiting_tokens": 18, "max_in_flight": 2},
            2,
            "queue full: max_in_flight",
            "2 inside, max_in_flight is 2",
        ),
        ({}, 6, None, None),
    ],
)
def test_limits(limits: dict[str, int], accepted: int, reason: str | None, detail: str | None):
    """Six requests of 4 prompt tokens at once, before the engine has looked at any: all of them wait."""
    result = run([request()] * 6, limits)
    assert states(result) == ["finished"] * accepted + ["rejected"] * (6 - accepted)
    if reason is not None:
        assert result.requests.reason[5] == reason
        assert result.requests.detail[5] == detail
        assert result.requests.end_ns[5] == 0


def test_a_swapped_request_is_in_flight_and_not_waiting():
    """Counted where it is."""
    core = EngineCore(Reference(num_blocks=100).spec(UNKNOWN_HARDWARE))
    core.swapped.push(Request("swapped", prompt_tokens=4, max_tokens=1))
    new = Request("new", prompt_tokens=4, max_tokens=1)
    assert Front(FrontLimits(max_in_flight=1)).receive(core, new).verdict is Verdict.REJECT
    assert Front(FrontLimits(max_waiting=1)).receive(core, new) is ADMIT


def test_who_can_never_run_is_refused_for_that_even_if_it_would_have_to_wait_outside():
    """A prompt larger than the pool."""
    result = run([request(), {"prompt_tokens": 900, "output_tokens": 1}], {"max_in_flight": 1, "overflow": "queue"})
    assert states(result) == ["finished", "rejected"]
    assert result.requests.reason[1] == "prompt > KV"


@pytest.mark.parametrize("max_stretch", [1, FOREVER])
def test_outside_they_wait_in_order_and_come_in_as_room_appears(max_stretch: int):
    """One at a time, 100 ms each: at 0, 100 and 200 ms; a priority queue inside does not see them before."""
    rows = [request(), request(priority=5, arrival_s=0.01), request(priority=0, arrival_s=0.02)]
    engine = {"preset": "reference", "num_blocks": 100, "order": "priority"}
    result = run(rows, {"max_in_flight": 1, "overflow": "queue"}, engine=engine, max_stretch=max_stretch)
    assert list(result.requests.admitted_ns) == [0, 100 * MS, 200 * MS]
    assert list(result.requests.came_in_ns) == [NEVER, 100 * MS, 200 * MS]
    assert list(result.requests.waiting_seen) == [0, 0, 1]
    # The first steps ran with nobody there; from 10 ms on somebody waits outside until the last comes in at 200 ms.
    assert result.logs[0].deferrals == {"front: max_in_flight": 19}


@pytest.mark.parametrize("max_stretch", [1, FOREVER])
def test_the_wait_outside_is_queue_time_blocked_by_policy(max_stretch: int):
    """Two slots and three in flight: the third waits for a slot, the fourth outside first, then for a slot as well.

    All are there at 0 and take 100, 200, 100 and 100 ms; the third starts at 100, the fourth comes in then and starts
    at 200.
    """
    engine = {"preset": "reference", "num_blocks": 100, "slots": 2}
    rows = [request(10), request(20), request(10), request(10)]
    result = run(rows, {"max_in_flight": 3, "overflow": "queue"}, engine=engine, max_stretch=max_stretch)
    assert list(result.requests.admitted_ns) == [0, 0, 100 * MS, 200 * MS]
    metrics = compute(result)
    assert metrics.value("queue_slots_s") == pytest.approx(0.1 + 0.1)
    assert metrics.value("queue_policy_s") == pytest.approx(0.1)
    assert Measured(result).queue_ns.tolist() == [0, 0, 100 * MS, 200 * MS]


@pytest.mark.parametrize("max_stretch", [1, FOREVER])
def test_timeouts_and_cancels_reach_those_who_wait_outside(max_stretch: int):
    """At their own time, in the middle of a step; those behind move up."""
    rows = [
        request(50),
        request(arrival_s=0.01, queue_timeout_s=0.101),
        request(arrival_s=0.02, cancel_after_s=0.201),
        request(arrival_s=0.03, timeout_s=0.301),
        request(arrival_s=0.04),
    ]
    result = run(rows, {"max_in_flight": 1, "overflow": "queue"}, max_stretch=max_stretch)
    assert states(result) == ["finished", "timed_out", "cancelled", "timed_out", "finished"]
    assert [end // MS for end in result.requests.end_ns] == [500, 111, 221, 331, 600]
    assert list(result.requests.came_in_ns) == [NEVER, NOT_YET, NOT_YET, NOT_YET, 500 * MS]
    assert compute(result).value("queue_policy_s") == pytest.approx(0.101 + 0.201 + 0.301 + 0.46)


@pytest.mark.parametrize("overflow", ["reject", "queue"])
def test_whoever_is_refused_or_waits_outside_ends_no_stretch(overflow: str):
    """One long answer and fifty arrivals beside it: still one plan for the prompt, and one for all the rest."""
    rows = [request(300), *(request(arrival_s=0.05 * (1 + at)) for at in range(50))]
    result = run(rows, {"max_in_flight": 1, "overflow": overflow})
    assert list(result.logs[0].steps.steps)[:2] == [1, 299]


def test_a_front_that_lets_in_only_who_is_shed_goes_on_with_the_next():
    """One may be inside; each who comes in is too late already, and the engine must not fall asleep over it."""
    rows = [request(50), *(request(arrival_s=0.001) for _ in range(5)), request(1, arrival_s=0.45)]
    admission = {"name": "shed-late", "parameters": {"ttft_s": 0.2}}
    result = run(rows, {"max_in_flight": 1, "overflow": "queue"}, policies={"admission": admission})
    assert states(result) == ["finished", *["rejected"] * 5, "finished"]
    assert set(result.requests.end_ns[1:6]) == {500 * MS}


def test_a_run_that_is_stopped_counts_who_is_outside():
    """Still queued."""
    result = run([request(50), request()], {"max_in_flight": 1, "overflow": "queue"}, max_sim_time_s=0.2)
    assert states(result) == ["running", "queued"]
    assert compute(result).value("queue_policy_s") == pytest.approx(0.2)


def test_decisions_name_the_limit():
    """DEFER with the reason that reports count."""
    core = EngineCore(Reference(num_blocks=100).spec(UNKNOWN_HARDWARE))
    core.front = Front(FrontLimits(max_waiting=1, overflow="queue"))
    first, second = (Request(name, prompt_tokens=4, max_tokens=2) for name in ("first", "second"))
    assert core.submit(first, stop_after=2) is ADMIT
    decision = core.submit(second, stop_after=2)
    assert (decision.verdict, decision.blocker, decision.reason) == (
        Verdict.DEFER,
        Blocker.POLICY,
        "front: max_waiting",
    )
    assert (len(core.waiting), core.num_waiting) == (1, 2)
    core.cancel(second)
    assert core.num_waiting == 1


@pytest.mark.parametrize(
    ("front", "message"),
    [
        ({"max_in_flight": 0}, "max_in_flight must be >= 1, got 0"),
        ({"overflow": "drop"}, "overflow"),
        ({"max_inflight": 3}, "max_in_flight"),
    ],
)
def test_senseless_limits(front: dict[str, Any], message: str):
    """Errors name the key and what is allowed."""
    with pytest.raises(ValueError, match=message):
        run([request()], front)
