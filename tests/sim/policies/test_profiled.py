"""Profiled admission: predictions per client, requests that outgrow them, and drift."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from sim import make_scenario, replay
from sim.core.engine import EngineCore
from sim.core.events import Admitted, Ended
from sim.core.lifecycle import State
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE, Reference
from sim.kv.store import NO_HIT
from sim.policies.profiled import ENOUGH, NO_ROOM, Profiled


def request(client: str = "", *, outputs: int = 0, prompt: int = 16, max_tokens: int = 8000) -> Request:
    made = Request("r", prompt_tokens=prompt, max_tokens=max_tokens, client=client)
    made.outputs = outputs
    return made


def teach(policy: Profiled, client: str, lengths: Iterable[int]) -> None:
    """Answers of these lengths come and go, one after the other."""
    for length in lengths:
        made = request(client)
        policy.observe(Admitted(made, 0))
        made.outputs, made.state = length, State.FINISHED
        policy.observe(Ended(made, 0))


def test_at_first_the_estimate_then_the_client_itself():
    """20 answers are enough; max_tokens is never exceeded."""
    policy = Profiled(quantile=0.9, estimate=128)
    assert policy.predicted_tokens(request("a")) == 128
    teach(policy, "a", range(1, 20))
    assert policy.predicted_tokens(request("a")) == 128
    teach(policy, "a", [20])
    assert policy.predicted_tokens(request("a")) == 18
    assert policy.predicted_tokens(request("a", max_tokens=5)) == 5


def test_a_new_client_is_predicted_by_all_others():
    """Forty clients of a few answers each: none has more than a twentieth of the weight."""
    policy = Profiled(quantile=0.9, estimate=128)
    for client in range(40):
        teach(policy, f"c{client}", [100, 200])
    assert policy.predicted_tokens(request("new")) == 200


def test_clients_do_not_touch_each_other():
    """An adversary floods the history with answers of one token, then of 8,000; who has a history has it still."""
    policy = Profiled(quantile=0.9, estimate=128)
    teach(policy, "honest", range(81, 101))
    for lie in (1, 8000):
        teach(policy, "liar", [lie] * 500)
        assert policy.predicted_tokens(request("honest")) == 98
        assert policy.predicted_tokens(request("liar")) == lie
        assert 98 <= policy.predicted_tokens(request("new")) <= 128


def test_conformal_holds_its_promise_with_few_lengths_too():
    """Eight lengths cannot promise 10 %: max_tokens; nine can: the longest."""
    policy = Profiled(method="conformal", alpha=0.1, min_history=8)
    teach(policy, "a", range(10, 18))
    assert policy.predicted_tokens(request("a")) == 8000
    teach(policy, "a", [18])
    assert policy.predicted_tokens(request("a")) == 18


def test_a_longer_answer_is_predicted_from_those_as_long():
    """Conditional on length > g: of 10 x 50 and 10 x 200, one that has 50 will have 200, one with 200 anything."""
    policy = Profiled(quantile=0.5)
    teach(policy, "a", [50, 200] * 10)
    assert [policy.predicted_tokens(request("a", outputs=have)) for have in (0, 49, 50, 200)] == [50, 50, 200, 8000]


def test_cancelled_answers_teach_nothing():
    """Their lengths are the client's patience, not the answer's."""
    policy = Profiled(estimate=128, min_history=1)
    made = request("a")
    policy.observe(Admitted(made, 0))
    made.outputs, made.state = 3, State.CANCELLED
    policy.observe(Ended(made, 0))
    assert policy.predicted_tokens(request("a")) == 128


def test_drift_is_noticed_and_gets_over():
    """Twenty answers are longer than predicted, one in ten was promised: max_tokens until that is past."""
    policy = Profiled(quantile=0.9, estimate=128, window=40)
    engine = EngineCore(Reference(num_blocks=1000).spec(UNKNOWN_HARDWARE))
    teach(policy, "a", [100] * 40)
    assert not policy.drifting("a")
    assert policy.reservation(engine, request("a")) == 8  # (16 + 100 - 1) / 16
    teach(policy, "a", [300] * 4 + [100] * 6)
    assert policy.drifts == {}
    teach(policy, "a", range(300, 320))
    assert policy.drifting("a")
    assert policy.drifts == {"a": 1}
    assert policy.reservation(engine, request("a")) == 501  # (16 + 8000 - 1) / 16
    assert policy.reservation(engine, request("b")) < 30
    assert policy.notes() == [
        "profiled admission: output lengths drifted 1 time(s) for 1 client(s), which were reserved max_tokens meanwhile"
    ]
    teach(policy, "a", [310] * 60)
    assert not policy.drifting("a")
    assert policy.drifts == {"a": 1}
    assert policy.reservation(engine, request("a")) == 21  # (16 + 310 - 1) / 16


def test_the_guard_waits_for_enough_answers():
    """One fewer than it takes, all of them too long."""
    policy = Profiled(estimate=128)
    teach(policy, "a", [200] * (ENOUGH - 1))
    assert not policy.drifting("a")
    teach(policy, "a", [300])
    assert policy.drifting("a")


@pytest.mark.parametrize(("outgrown", "promised"), [("conditional", 100), ("optimistic", 3)])
def test_a_request_that_outgrows_its_reservation(outgrown: Any, promised: int):
    """Predicted 16 tokens behind a prompt of 16, it has 33 entries in 3 blocks: nothing is known of such lengths.

    Conditionally it is reserved all that it may need (here the pool); optimistically what it holds.
    """
    spec = Reference(num_blocks=100).spec(UNKNOWN_HARDWARE)
    core = EngineCore(spec, max_stretch=1)
    policy = core.admission = Profiled(estimate=16, outgrown=outgrown)
    grown = Request("grown", prompt_tokens=16, max_tokens=8000)
    core.submit(grown, stop_after=8000)
    while grown.computed_tokens < 33:
        plan = core.plan_step()
        assert plan is not None
        core.commit_step(plan, 1)
    assert grown.reserved_blocks == 2
    assert core.held_blocks(grown) == 3
    assert grown.reserved_blocks + policy.outgrown_blocks(core) == promised
    small = Request("small", prompt_tokens=16, max_tokens=8000)
    decision = policy.open(core).decide(core, small, NO_HIT, 1)
    assert (decision is NO_ROOM) == (outgrown == "conditional")


def test_a_reservation_larger_than_the_pool_still_lets_a_request_run_alone():
    """Reserved for 8,000 tokens in a pool of 1,600: it is not refused, and turns out to be short."""
    row = {"prompt_tokens": 16, "output_tokens": 20, "max_tokens": 8000}
    result = replay(
        make_scenario(
            {
                "workload": {"kind": "inline", "requests": [row] * 3},
                "engine": {"preset": "reference", "num_blocks": 100},
                "policies": {"admission": {"name": "profiled", "parameters": {"estimate": 8000}}},
            }
        )
    )
    assert list(result.logs[0].steps.running)[:1] == [1]
    assert set(result.requests.output_tokens) == {20}


def test_reports_say_that_lengths_drifted():
    """Sixty requests a lot longer than the estimate: the guard's notes go with the result, its reason is counted."""
    row = {"prompt_tokens": 16, "output_tokens": 200, "max_tokens": 1000, "client": "a"}
    result = replay(
        make_scenario(
            {
                "workload": {"kind": "inline", "requests": [row] * 120},
                "engine": {"preset": "reference", "num_blocks": 400},
                "policies": {"admission": {"name": "profiled", "parameters": {"estimate": 16, "min_history": 20}}},
            }
        )
    )
    assert any("output lengths drifted 1 time(s) for 1 client(s)" in note for note in result.notes)
    assert result.logs[0].deferrals["max_tokens do not fit (lengths have drifted)"] > 0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"quantile": 1.0}, "quantile must be > 0 and < 1, got 1"),
        ({"estimate": 0}, "estimate must be >= 1, got 0"),
        ({"window": 10}, "min_history must be <= window, got 20 > 10"),
        ({"method": "mean"}, "method must be one of quantile, conformal, got 'mean'"),
        ({"margin_blocks": -1}, "margin_blocks must be >= 0, got -1"),
    ],
)
def test_senseless_parameters(parameters: dict[str, Any], message: str):
    """Errors name the parameter and what is allowed."""
    choice = {"name": "profiled", "parameters": parameters}
    with pytest.raises(ValueError, match=message):
        replay(make_scenario({"workload": {"kind": "bundled"}, "policies": {"admission": choice}}))
