"""Engines on the clock: departures inside steps and stretches, limits, and what a stopped run leaves behind."""

from __future__ import annotations

from typing import Any

import pytest

from sim import make_scenario, replay
from sim.results.columns import STATES
from sim.results.run import RunResult
from sim.results.tokens import expand

MS = 1_000_000


def run(requests: list[dict[str, Any]], *, max_stretch: int = 1 << 60, **scenario: Any) -> RunResult:
    """Steps of 10 ms on `reference` unless said otherwise."""
    description = {
        "workload": {"kind": "inline", "requests": requests},
        "engine": {"preset": "reference", "block_size": 4, "num_blocks": 100},
        "cost": {"kind": "linear", "a_s": 0.01, "b_s_per_token": 0.0},
        **scenario,
    }
    return replay(make_scenario(description), max_stretch=max_stretch)


def states(result: RunResult) -> list[str]:
    return [STATES[state].value for state in result.requests.state]


def request(outputs: int = 50, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": 4, "output_tokens": outputs, "max_tokens": outputs, **more}


VLLM = {"preset": "vllm-v1", "num_gpu_blocks_override": 101, "block_size": 4}
ENGINES = [
    {"preset": "reference", "block_size": 4, "num_blocks": 100},
    {**VLLM, "async_scheduling": False},
    VLLM,
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("max_stretch", [1, 1 << 60])
def test_cancel_and_timeout_inside_one_step_end_a_request_once(engine: dict[str, Any], max_stretch: int) -> None:
    """The cancel comes first; the request keeps its blocks to the end of the step and gets no token of it."""
    result = run([request(timeout_s=0.055, cancel_after_s=0.054), request()], engine=engine, max_stretch=max_stretch)
    assert states(result) == ["cancelled", "finished"]
    assert result.requests.end_ns[0] == 60 * MS
    assert result.requests.output_tokens[0] == 5
    assert expand(result.logs[0], 0).tolist() == [10 * MS, 20 * MS, 30 * MS, 40 * MS, 50 * MS]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("cancel_s", "tokens"), [(0.05, 4), (0.050000001, 5), (0.049999999, 4)])
def test_a_cancel_exactly_at_a_step_end_wins_over_its_output(
    engine: dict[str, Any], cancel_s: float, tokens: int
) -> None:
    """DESIGN 2: cancels come before the boundary of their instant, so the token of step 5 is not delivered."""
    result = run([request(cancel_after_s=cancel_s)], engine=engine)
    assert states(result) == ["cancelled"]
    assert result.requests.output_tokens[0] == tokens


@pytest.mark.parametrize("engine", ENGINES)
def test_a_deadline_reached_at_the_end_of_the_last_step_has_timed_out(engine: dict[str, Any]) -> None:
    late = run([request(5, timeout_s=0.05)], engine=engine)
    assert states(late) == ["timed_out"]
    just = run([request(5, timeout_s=0.050000001)], engine=engine)
    assert states(just) == ["finished"]


def test_leaving_the_head_of_the_queue_lets_the_next_one_in_at_the_next_step() -> None:
    """The head does not fit and times out; the one behind it does fit and need not wait for anything else."""
    result = run(
        [
            request(60),
            {"arrival_s": 0.001, "prompt_tokens": 24, "output_tokens": 2, "max_tokens": 2, "queue_timeout_s": 0.033},
            {"arrival_s": 0.002, "prompt_tokens": 1, "output_tokens": 2, "max_tokens": 2},
        ],
        engine={"preset": "reference", "block_size": 4, "num_blocks": 6, "max_model_len": 100},
        max_sim_time_s=0.2,
    )
    assert states(result)[1:] == ["timed_out", "finished"]
    assert result.requests.end_ns[1] == 34 * MS
    assert result.requests.admitted_ns[2] == 40 * MS


@pytest.mark.parametrize("max_stretch", [1, 1 << 60])
def test_alarms_of_requests_that_have_ended_do_not_make_a_run_partial(max_stretch: int) -> None:
    result = run([request(5, timeout_s=600.0), request(3, cancel_after_s=300.0)], max_sim_time_s=60.0,
                 max_stretch=max_stretch)  # fmt: skip
    assert result.outcome.stopped is None
    assert result.outcome.end_ns == 50 * MS


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("max_stretch", [1, 1 << 60])
def test_a_run_stopped_by_time_counts_what_has_come_out(engine: dict[str, Any], max_stretch: int) -> None:
    result = run([request(50), request(3)], engine=engine, max_sim_time_s=0.105, max_stretch=max_stretch)
    assert result.outcome.stopped == "--max-sim-time 0.105 s"
    assert states(result) == ["running", "finished"]
    assert list(result.requests.output_tokens) == [10, 3]
    assert len(expand(result.logs[0], 0)) == 10


@pytest.mark.parametrize("max_stretch", [1, 1 << 60])
def test_a_run_stopped_by_steps_has_exactly_so_many(max_stretch: int) -> None:
    result = run([request(50)], max_steps=7, max_stretch=max_stretch)
    assert result.outcome.stopped == "--max-steps 7"
    assert sum(result.logs[0].steps.steps) == 7
    assert list(result.requests.output_tokens) == [7]


@pytest.mark.parametrize("max_stretch", [1, 1 << 60])
def test_reasons_are_those_of_the_first_test_that_says_no(max_stretch: int) -> None:
    """vLLM asks for budget before slots: with both used up it is the budget that a newcomer waits for."""
    engine = {**VLLM, "async_scheduling": False, "max_num_batched_tokens": 4, "max_num_seqs": 4}
    first = [{"prompt_tokens": 1, "output_tokens": 40, "max_tokens": 40}] * 4
    result = run([*first, request(5, arrival_s=0.015)], engine=engine, max_stretch=max_stretch)
    assert set(result.logs[0].deferrals) == {"step budget used up"}


def test_the_blocker_is_kept_where_no_plan_comes_out() -> None:
    """Depth 2, one slot: while the last token is in flight the head still waits for the slot."""
    result = run([request(5), request(2, arrival_s=0.001)], engine={**VLLM, "max_num_seqs": 1})
    log = result.logs[0]
    # 'a' is planned at 0; 'b' is first looked at when step 3 is planned, and waits for the slot until the end of 'a'.
    from sim.core.plan import Blocker
    from sim.results.journal import BLOCKERS

    history = list(zip(log.blocked_since_ns, [BLOCKERS[code] for code in log.blocked_by], strict=True))
    assert history == [(0, Blocker.NOTHING), (10 * MS, Blocker.SLOTS), (50 * MS, Blocker.NOTHING)]
    assert result.requests.admitted_ns[1] == 50 * MS
