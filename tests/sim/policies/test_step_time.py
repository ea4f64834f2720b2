"""A budget in seconds: T = 10 ms + 0.05 ms per token, as in worked case G1, unless a test says otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from costmodel.config import LinearConfig, build_cost_model
from costmodel.shape import StepShape
from sim import make_scenario, replay
from sim.policies.step_time import StepTime, TimeMeter
from sim.results.metrics import compute
from sim.results.run import RunResult
from sim.results.tokens import expand

COST = build_cost_model(LinearConfig(a_s=0.01, b_s_per_token=0.05e-3))
MS = 1_000_000


def meter(target_s: float = 0.15, tokens: int = 1 << 60, least: int = 0) -> TimeMeter:
    return TimeMeter(COST, round(target_s * 1e9), tokens, least)


def run(budget: dict[str, Any], *, prompt: int, stream: int = 0) -> RunResult:
    """A prompt beside `stream` requests that decode already."""
    decoder = {"prompt_tokens": 1, "computed_tokens": 1, "output_tokens": 1, "remaining_output_tokens": 40}
    description = {
        "workload": {
            "kind": "inline",
            "requests": [{"id": "prompt", "prompt_tokens": prompt, "output_tokens": 1, "max_tokens": 1}],
        },
        "initial": {"running": [{"id": f"stream {at}", **decoder} for at in range(stream)]},
        "engine": {"preset": "reference", "num_blocks": 2000},
        "cost": {"kind": "linear", "a_s": 0.01, "b_s_per_token": 0.05e-3},
        "policies": {"budget": {"name": "step-time", "parameters": budget}},
    }
    return replay(make_scenario(description))


def test_g1_the_largest_budget_for_150_ms_is_2800_tokens():
    """(150 - 10) / 0.05: the decode takes one of them, so the prompt of 8192 goes in 3 steps of at most 150 ms."""
    result = run({"target_s": 0.15}, prompt=8192, stream=1)
    assert list(result.logs[0].steps.prefill_tokens)[:3] == [2799, 2799, 2594]
    gaps_ms = np.diff(expand(result.logs[0], 0)) / MS
    assert gaps_ms.max() == pytest.approx(150)


def test_the_chunk_is_the_largest_that_fits():
    """Judged by what the clock will show, in whole nanoseconds: 2,800 tokens take 150 ms exactly."""
    grant = meter().grant(8192, 0, decode=False, admitting=True)
    assert grant == 2800
    assert COST.step_times_ns(StepShape(((2800, 0),)), 1) == [150 * MS]


def test_what_is_granted_counts():
    """1,000 tokens of one prompt and 300 decodes leave 1,500 for another; taken back, they are there again."""
    step = meter()
    step.spend(1000, 0, decode=False)
    assert step.spend_decodes(300, 30_000)
    before = step.copy()
    assert step.grant(9999, 0, decode=False, admitting=False) == 1500
    step.refund(1000, 0, decode=False)
    assert step.grant(9999, 0, decode=False, admitting=False) == 2500
    step.refund(1, 100, decode=True)
    assert step.grant(9999, 0, decode=False, admitting=False) == 2501
    assert before.grant(9999, 0, decode=False, admitting=False) == 1500


def test_decodes_run_whatever_they_take_and_starvation_is_reported():
    """200 decodes alone take 20 ms, the target is 15: the prompt waits until they are through, 39 steps later."""
    result = run({"target_s": 0.015}, prompt=300, stream=200)
    steps = result.logs[0].steps
    assert steps.decode_requests[0] == 200
    assert compute(result).value("num_starved_steps") == 40
    assert result.logs[0].deferrals == {"prompt does not fit the step budget": 40}
    assert result.requests.admitted_ns[200] == 40 * 20 * MS


def test_the_minimum_keeps_prompts_going():
    """The same with at least 30 prompt tokens a step: 10 steps of 21.5 ms."""
    result = run({"target_s": 0.015, "prefill_min_tokens": 30}, prompt=300, stream=200)
    assert list(result.logs[0].steps.prefill_tokens)[:11] == [30] * 10 + [0]
    assert expand(result.logs[0], 200).tolist() == [10 * 21.5 * MS]


def test_the_minimum_is_for_all_prompts_together_and_is_no_maximum():
    """Beyond the target: 20 for the first, 10 for the second. Within it the minimum means nothing."""
    late = meter(target_s=0.009, least=30)
    assert late.grant(20, 0, decode=False, admitting=False) == 20
    late.spend(20, 0, decode=False)
    assert late.grant(20, 0, decode=False, admitting=False) == 10
    assert meter(least=30).grant(9999, 0, decode=False, admitting=False) == 2800


def test_tokens_are_limited_too():
    """`max_tokens`, where none is given that of the budget replaced, bounds decodes and prompts."""
    step = meter(tokens=100)
    assert not step.spend_decodes(101, 0)
    assert step.spend_decodes(90, 0)
    assert step.grant(99, 0, decode=False, admitting=False) == 10
    step.spend(10, 0, decode=False)
    assert not step.has_left()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "budget policy 'step-time' needs target_s"),
        ({"target_s": 0}, "target_s must be > 0, got 0"),
        (
            {"target_s": 1, "max_tokens": 5, "prefill_min_tokens": 6},
            "prefill_min_tokens must be >= 0 and <= max_tokens",
        ),
    ],
)
def test_senseless_parameters(parameters: dict[str, Any], message: str):
    """Errors name the parameter and what is allowed; the cost model is the scenario's."""
    with pytest.raises(ValueError, match=message):
        run(parameters, prompt=1)


def test_from_python():
    """With a cost model of one's own."""
    assert StepTime(0.15, COST).target_ns == 150 * MS
