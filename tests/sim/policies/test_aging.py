"""Priorities that age, and victims that are spared for a while."""

from __future__ import annotations

from typing import Any

import pytest

from sim import make_scenario, replay
from sim.core.engine import EngineCore
from sim.core.events import Admitted, CameBack
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE, Reference
from sim.policies.aging import LeastUrgentHysteresis, PriorityAging
from sim.results.run import RunResult

NS = 1_000_000_000
MS = 1_000_000


def request(name: str, *, priority: int, arrival_s: float) -> Request:
    return Request(name, prompt_tokens=1, max_tokens=1, priority=priority, arrival_ns=round(arrival_s * NS))


def order(aging_s: float, *requests: Request) -> list[str]:
    queue = PriorityAging(aging_s).queue()
    for number, each in enumerate(requests, start=1):
        each.number = number
        queue.push(each)
    return [each.id for each in queue]


def test_a_request_is_overtaken_only_by_those_that_come_soon_after_it():
    """Priority 2 against 0, 10 s each: those up to 20 s later go first, equality to the one that came before."""
    requests = [
        request("patient", priority=2, arrival_s=0),
        request("at 19 s", priority=0, arrival_s=19),
        request("at 20 s", priority=0, arrival_s=20),
        request("at 21 s", priority=0, arrival_s=21),
    ]
    assert order(10, *requests) == ["at 19 s", "patient", "at 20 s", "at 21 s"]


def test_without_aging_it_is_the_order_of_arrival_and_with_much_that_of_priority():
    """The two ends of the parameter."""
    requests = [request("first", priority=1, arrival_s=0), request("urgent", priority=0, arrival_s=5)]
    assert order(0, *requests) == ["first", "urgent"]
    assert order(1e6, *requests) == ["urgent", "first"]


def one_slot(order: Any) -> RunResult:
    """A request of priority 1 among urgent ones that come faster than they are served (0.1 s each, one slot)."""
    urgent = [
        {
            "id": f"u{at}",
            "arrival_s": 0.09 * at,
            "prompt_tokens": 4,
            "output_tokens": 10,
            "max_tokens": 10,
            "priority": 0,
        }
        for at in range(60)
    ]
    patient = {"id": "patient", "arrival_s": 0.01, "prompt_tokens": 4, "output_tokens": 1, "priority": 1}
    description = {
        "workload": {"kind": "inline", "requests": [urgent[0], patient, *urgent[1:]]},
        "engine": {"preset": "reference", "slots": 1, "num_blocks": 100},
        "cost": {"kind": "linear", "a_s": 0.01, "b_s_per_token": 0.0},
        "policies": {"order": order},
    }
    return replay(make_scenario(description))


def test_starvation_is_bounded():
    """By priority alone it waits for the last urgent one; with `aging_s` = 1 for those of the first second."""
    assert one_slot("priority").requests.admitted_ns[1] == 6000 * MS
    aged = one_slot({"name": "priority-aging", "parameters": {"aging_s": 1.0}})
    assert aged.requests.admitted_ns[1] == 1200 * MS  # u0 .. u11 arrive up to 0.99 s, before 1.01 s


def interrupted(preemption: Any) -> RunResult:
    """A background request that fills most of the pool, and an urgent one every 50 ms."""
    background = {"id": "bg", "prompt_tokens": 4, "output_tokens": 44, "max_tokens": 44, "priority": 5}
    urgent = [
        {"arrival_s": round(0.01 + 0.05 * at, 3), "prompt_tokens": 5, "output_tokens": 8, "max_tokens": 8}
        for at in range(20)
    ]
    description = {
        "workload": {"kind": "inline", "requests": [background, *urgent]},
        "engine": {"preset": "reference", "block_size": 4, "num_blocks": 12, "order": "priority"},
        "cost": {"kind": "linear", "a_s": 0.01, "b_s_per_token": 0.0},
        "policies": {"preemption": preemption},
    }
    return replay(make_scenario(description))


@pytest.mark.parametrize(
    ("preemption", "times", "lost_tokens", "end_ms"),
    [
        ("least-urgent", 5, 190, 1110),
        ({"name": "least-urgent-hysteresis", "parameters": {"min_residency_s": 0, "max_preemptions": 2}}, 2, 81, 1040),
        (
            {"name": "least-urgent-hysteresis", "parameters": {"min_residency_s": 0.2, "max_preemptions": 0}},
            2,
            76,
            1110,
        ),
        ({"name": "least-urgent-hysteresis", "parameters": {"min_residency_s": 0, "max_preemptions": 0}}, 5, 190, 1110),
    ],
)
def test_hysteresis_ends_thrashing(preemption: Any, times: int, lost_tokens: int, end_ms: int):
    """The background request is preempted and let in again all the time, unless it is spared."""
    result = interrupted(preemption)
    assert result.requests.preemptions[0] == times
    assert sum(result.requests.lost_tokens) == lost_tokens
    assert result.outcome.end_ns == end_ms * MS
    assert result.outcome.stalled is None


def test_all_spared_and_nobody_could_run_still_somebody_gives_way():
    """Two equal requests need a block in the same step and none is free: sparing both would be the end of the run."""
    row = {"prompt_tokens": 4, "output_tokens": 20, "max_tokens": 20}
    description = {
        "workload": {"kind": "inline", "requests": [row, row]},
        "engine": {"preset": "reference", "block_size": 4, "num_blocks": 6},
        "policies": {"preemption": {"name": "least-urgent-hysteresis", "parameters": {"min_residency_s": 1e6}}},
    }
    result = replay(make_scenario(description))
    assert result.outcome.stalled is None
    assert sum(result.requests.preemptions) > 0


@pytest.mark.parametrize(
    ("kind", "choice", "message"),
    [
        ("order", {"name": "priority-aging", "parameters": {"aging_s": -1}}, "aging_s must be >= 0 and < 1e9, got -1"),
        (
            "preemption",
            {"name": "least-urgent-hysteresis", "parameters": {"max_preemptions": -1}},
            r"max_preemptions must be >= 0 \(0 = no bound\), got -1",
        ),
    ],
)
def test_senseless_parameters(kind: str, choice: Any, message: str):
    """Errors name the parameter and what is allowed."""
    with pytest.raises(ValueError, match=message):
        replay(make_scenario({"workload": {"kind": "bundled"}, "policies": {kind: choice}}))


def test_coming_back_from_the_host_begins_a_new_residency():
    """Spared for 1 s from admission, then again from the swap-in."""
    core = EngineCore(Reference(num_blocks=100).spec(UNKNOWN_HARDWARE))
    policy = core.preemption = LeastUrgentHysteresis(min_residency_s=1.0, max_preemptions=0, mode="swap")
    assert policy.may_swap
    old, new = (Request(name, prompt_tokens=4, max_tokens=9, arrival_ns=at) for at, name in enumerate(("old", "new")))
    core.running = {old: None, new: None}
    policy.observe(Admitted(old, 0))
    policy.observe(Admitted(new, 0))
    core.now_ns = 2 * NS
    assert policy.victim(core, old, core.latest_draft) is new
    policy.observe(CameBack(new, 2 * NS))
    assert policy.victim(core, old, core.latest_draft) is old
