"""Deadlines: who goes first, and who is let go."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from sim import make_scenario, replay
from sim.core.request import Request
from sim.policies.deadline import EarliestDeadline, LeastSlack, ShedLate
from sim.policies.protocols import OrderPolicy
from sim.results.columns import STATES
from sim.results.run import RunResult

NS = 1_000_000_000
MS = 1_000_000


def request(name: str, *, arrival_s: float = 0.0, prompt: int = 1, client: str = "", outputs: int = 0) -> Request:
    made = Request(name, prompt_tokens=prompt, max_tokens=99, client=client, arrival_ns=round(arrival_s * NS))
    made.outputs = outputs
    return made


def order(policy: OrderPolicy, *requests: Request) -> list[str]:
    queue = policy.queue()
    for number, each in enumerate(requests, start=1):
        each.number = number
        queue.push(each)
    return [each.id for each in queue]


def test_edf_with_one_target_is_the_order_of_arrival():
    """Ties go to the one submitted first."""
    assert order(EarliestDeadline(2.0), request("b", arrival_s=1), request("a"), request("c")) == ["a", "c", "b"]


def test_edf_by_client():
    """Due at 5.0, 3.5 and 5.2 s."""
    policy = EarliestDeadline(5.0, client_ttft_s={"gold": 0.5})
    requests = request("a"), request("b", arrival_s=3, client="gold"), request("c", arrival_s=0.2)
    assert order(policy, *requests) == ["b", "a", "c"]


def test_edf_gives_who_has_tokens_a_deadline_for_the_next():
    """Preempted after 10 tokens at 0.1 s each: its 11th is due at 3 s, the other's first at 2.5 s."""
    policy = EarliestDeadline(2.0, tpot_s=0.1)
    assert order(policy, request("preempted", outputs=10), request("new", arrival_s=0.5)) == ["new", "preempted"]


def test_least_slack_puts_long_prompts_first():
    """At 1,000 tokens/s: due at 2 and 2.5 s, of which 0.1 and 1 s are prefill: must start by 1.9 and 1.5 s."""
    policy = LeastSlack(1000.0, 2.0)
    assert order(policy, request("short", prompt=100), request("long", arrival_s=0.5, prompt=1000)) == ["long", "short"]


def test_least_slack_is_edf_with_prompts_of_one_length():
    """The remaining service is the same for all."""
    policy = LeastSlack(1000.0, 5.0, client_ttft_s={"gold": 0.5})
    requests = request("a"), request("b", arrival_s=3, client="gold"), request("c", arrival_s=0.2)
    assert order(policy, *requests) == ["b", "a", "c"]


def one_slot(admission: Any, **more: Any) -> RunResult:
    """Ten requests at 0, one slot, 0.1 s each."""
    row = {"prompt_tokens": 10, "output_tokens": 10, "max_tokens": 10}
    description = {
        "workload": {"kind": "inline", "requests": [row] * 10},
        "engine": {"preset": "reference", "slots": 1, "num_blocks": 100},
        "cost": {"kind": "linear", "a_s": 0.01, "b_s_per_token": 0.0},
        "policies": {"admission": admission},
        "slo": {"ttft_s": 0.45},
        **more,
    }
    return replay(make_scenario(description))


def ends(result: RunResult) -> Counter[str]:
    return Counter(STATES[state].value for state in result.requests.state)


def test_late_requests_end_when_the_scan_comes_to_them():
    """Due at 0.45 s: five start at 0 .. 0.4 s; the others are looked at when the slot is free, at 0.5 s."""
    result = one_slot({"name": "shed-late", "parameters": {"ttft_s": 0.45}})
    assert ends(result) == {"finished": 5, "rejected": 5}
    assert set(result.requests.end_ns[5:]) == {500 * MS}
    assert set(result.requests.reason.values()) == {"deadline passed", "length"}
    assert result.requests.detail[5] == "due 0.450 s, looked at 0.500 s"


def test_requests_without_slack_end_before_they_are_late():
    """10 tokens at 150 tokens/s are 67 ms: at 0.4 s that is too late for 0.45 s."""
    result = one_slot({"name": "shed-late", "parameters": {"ttft_s": 0.45, "prefill_tokens_per_s": 150}})
    assert ends(result) == {"finished": 4, "rejected": 6}
    assert set(result.requests.reason.values()) == {"no slack", "length"}
    assert result.requests.detail[4] == "due 0.450 s, at 0.400 s it needs 0.067 s"


def test_a_deadline_that_is_met_exactly_is_met():
    """Looked at in the nanosecond in which it is due."""
    assert ends(one_slot({"name": "shed-late", "parameters": {"ttft_s": 0.5}})) == {"finished": 6, "rejected": 4}


@pytest.mark.parametrize(
    ("inner", "reserved"),
    [(None, 0), ("conservative", 2), ({"name": "conservative", "parameters": {"margin_blocks": 1}}, 2)],
)
def test_what_is_wrapped_decides_about_the_rest(inner: Any, reserved: int):
    """By default the preset's own (optimistic here); a name, or a table of name and parameters."""
    parameters = {"ttft_s": 0.45} if inner is None else {"ttft_s": 0.45, "inner": inner}
    result = one_slot({"name": "shed-late", "parameters": parameters})
    assert ends(result) == {"finished": 5, "rejected": 5}
    assert result.logs[0].steps.reserved_blocks.max() == reserved


def test_who_has_a_token_is_never_shed():
    """A preempted request waits past its TTFT target and finishes all the same."""
    result = replay(
        make_scenario(
            {
                "workload": {
                    "kind": "inline",
                    "requests": [{"prompt_tokens": 34, "output_tokens": 35, "max_tokens": 35}] * 2,
                },
                "engine": {"preset": "reference", "block_size": 16, "num_blocks": 6},
                "cost": {"kind": "linear", "a_s": 0.01, "b_s_per_token": 0.0},
                "policies": {"admission": {"name": "shed-late", "parameters": {"ttft_s": 0.1}}},
            }
        )
    )
    assert ends(result) == {"finished": 2}
    assert list(result.requests.preemptions) == [0, 1]


def test_a_wrapper_runs_no_files():
    """What a scenario file may not run without being allowed to, it may not wrap either."""
    with pytest.raises(ValueError, match=r"inner must be a registered policy, got '\./mine\.py:Mine'"):
        one_slot({"name": "shed-late", "parameters": {"inner": "./mine.py:Mine"}})


def test_senseless_parameters():
    """Errors name the parameter and what is allowed."""
    with pytest.raises(ValueError, match="client_ttft_s of 'gold' must be >= 0 and < 1e9, got -1"):
        EarliestDeadline(client_ttft_s={"gold": -1.0})
    with pytest.raises(ValueError, match="prefill_tokens_per_s must be > 0, got 0"):
        LeastSlack(0.0)
    with pytest.raises(TypeError, match="inner"):
        ShedLate()  # type: ignore[call-arg]
