"""Equal shares of the prefill budget, beside one prompt after the other."""

from __future__ import annotations

from typing import Any

import pytest

from sim import make_scenario, replay
from sim.core.engine import EngineCore
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE, Reference
from sim.policies.sharing import EqualShare, ShareMeter
from sim.results.run import RunResult
from sim.results.tokens import expand

MS = 1_000_000


def run(budget: dict[str, Any], *prompts: int, **engine: Any) -> RunResult:
    """Prompts at 0, steps of 10 ms, answers of one token."""
    rows = [{"prompt_tokens": tokens, "output_tokens": 1, "max_tokens": 1} for tokens in prompts]
    description = {
        "workload": {"kind": "inline", "requests": rows},
        "engine": {"preset": "reference", "block_size": 4, "num_blocks": 100, **engine},
        "cost": {"kind": "linear", "a_s": 0.01, "b_s_per_token": 0.0},
        "policies": {"budget": budget},
    }
    return replay(make_scenario(description))


def ttft_ms(result: RunResult) -> list[float]:
    return [expand(result.logs[0], row)[0] / MS for row in range(len(result.trace))]


SEQUENTIAL = {"name": "decode-first", "parameters": {"max_tokens": 6}}
EQUAL = {"name": "equal-share", "parameters": {"max_tokens": 6, "unit_tokens": 1}}


def test_what_each_does_to_ttft():
    """24 and 6 prompt tokens, 6 a step. In turn: 4 steps, then 1. Shared: 3 + 3 twice, then the long one alone.

    The short prompt gains 30 ms, the long one loses 10; both ways take 5 steps.
    """
    assert ttft_ms(run(SEQUENTIAL, 24, 6)) == [40, 50]
    assert ttft_ms(run(EQUAL, 24, 6)) == [50, 20]


def test_equal_prompts_all_get_the_worst_of_it():
    """Two of 12: in turn 20 and 40 ms, shared both 40: for equal lengths sharing only delays."""
    assert ttft_ms(run(SEQUENTIAL, 12, 12)) == [20, 40]
    assert ttft_ms(run(EQUAL, 12, 12)) == [40, 40]


def shares(left: int, unit: int, *prompts: int, most: int = 64, **engine: Any) -> list[int]:
    """What each waiting prompt is granted in an empty engine."""
    core = EngineCore(Reference(**{"num_blocks": 1000, **engine}).spec(UNKNOWN_HARDWARE))
    for tokens in prompts:
        core.submit(Request("r", prompt_tokens=tokens, max_tokens=1), stop_after=1)
    meter, out = ShareMeter(core, left, unit, most), []
    for tokens in prompts:
        granted = meter.grant(tokens, 0, decode=False, admitting=True)
        assert granted is not None
        meter.spend(granted, 0, decode=False)
        out.append(granted)
    return out


@pytest.mark.parametrize(
    ("left", "unit", "prompts", "granted"),
    [
        (9, 1, (10, 10, 10), [3, 3, 3]),
        (10, 1, (10, 10, 10), [4, 3, 3]),  # the odd one goes to the first
        (12, 1, (2, 10, 10), [2, 5, 5]),  # what one does not need is the others'
        (100, 1, (2, 10, 10), [2, 10, 10]),
        (16, 4, (10, 10, 10), [8, 4, 4]),  # whole units, round by round
        (10, 4, (10, 10), [6, 4]),  # the last one is cut: nothing is left over
        (3, 4, (10, 10), [3, 0]),
        (100, 64, (1, 1, 100), [1, 1, 98]),
    ],
)
def test_round_robin_by_units(left: int, unit: int, prompts: tuple[int, ...], granted: list[int]):
    """Each gets a unit a round until it is done or nothing is left."""
    assert shares(left, unit, *prompts) == granted


def test_only_who_can_start_takes_part():
    """With slots for two, blocks for one, or a bound on sharers, the others' shares are not kept for them."""
    assert shares(9, 1, 10, 10, 10, slots=2)[:2] == [5, 4]
    assert shares(9, 1, 10, 10, block_size=10, num_blocks=1)[0] == 9
    assert shares(9, 1, 10, 10, 10, most=1)[0] == 9


def test_a_victim_gives_its_share_back():
    """Refunds go where they came from, copies keep theirs."""
    core = EngineCore(Reference().spec(UNKNOWN_HARDWARE))
    for name in ("a", "b"):
        core.submit(Request(name, prompt_tokens=10, max_tokens=1), stop_after=1)
    meter = ShareMeter(core, 9, 1, 64)
    assert meter.grant(10, 0, decode=False, admitting=True) == 5
    meter.spend(5, 0, decode=False)
    copy = meter.copy()
    meter.refund(5, 0, decode=False)
    assert meter.grant(10, 0, decode=False, admitting=True) == 5
    assert copy.grant(10, 0, decode=False, admitting=True) == 4
    assert copy.spend_decodes(4, 100)
    assert not copy.has_left()
    assert not copy.spend_decodes(1, 100)


def test_decodes_come_first():
    """Two decodes leave 4 of 6 for two prompts."""
    rows = [{"prompt_tokens": 1, "output_tokens": 9, "max_tokens": 9}] * 2
    rows += [{"arrival_s": 0.005, "prompt_tokens": 8, "output_tokens": 1, "max_tokens": 1}] * 2
    description = {
        "workload": {"kind": "inline", "requests": rows},
        "engine": {"preset": "reference", "num_blocks": 100},
        "cost": {"kind": "linear", "a_s": 0.01, "b_s_per_token": 0.0},
        "policies": {"budget": EQUAL},
    }
    steps = replay(make_scenario(description)).logs[0].steps
    assert list(steps.prefill_tokens)[:6] == [2, 4, 4, 4, 4, 0]
    assert list(steps.prefill_requests)[1:5] == [2, 2, 2, 2]


def test_senseless_parameters():
    """Errors name the parameter and what is allowed."""
    with pytest.raises(ValueError, match="unit_tokens must be >= 1, got 0"):
        EqualShare(unit_tokens=0)
