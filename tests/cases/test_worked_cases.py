"""The worked cases of public reports, with their exact numbers. Scenario files stand in `scenarios/`, one per case.

Steps last 10 ms unless a case says otherwise and are numbered from 1, so "step 35" ends at 0.35 s.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim import Scenario, make_scenario, read_scenario, replay
from sim.core.engine import EngineCore
from sim.core.plan import ADMIT, Blocker, Verdict
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE, Reference
from sim.kv.content import Content
from sim.results.columns import STATES
from sim.results.metrics import compute
from sim.results.run import RunResult
from sim.results.summary import never_served
from sim.results.tokens import expand

SCENARIOS = Path(__file__).parent / "scenarios"
MS = 1_000_000


def scenario(case: str, **changes: Any) -> Scenario:
    """The case's file; `engine={...}` and the like go on top of its tables."""
    description = read_scenario(SCENARIOS / f"{case}.toml").model_dump(mode="json", exclude_unset=True)
    for key, value in changes.items():
        old = description.get(key)
        description[key] = {**old, **value} if isinstance(value, dict) and isinstance(old, dict) else value
    return make_scenario(description)


def row(run: RunResult, request_id: str) -> int:
    assert run.trace.request_ids is not None
    return list(run.trace.request_ids).index(request_id)


def ended(run: RunResult, request_id: str) -> tuple[str, int]:
    """(how, ns)"""
    at = row(run, request_id)
    return STATES[run.requests.state[at]].value, run.requests.end_ns[at]


def tokens_ms(run: RunResult, request_id: str) -> list[float]:
    return [time / MS for time in expand(run.logs[0], row(run, request_id)).tolist()]


def step_of(ns: int) -> int:
    """The number of the 10 ms step that ends at this time."""
    assert ns % (10 * MS) == 0
    return ns // (10 * MS)


def test_a1_a_request_that_can_never_fit_is_rejected_at_submission() -> None:
    run = replay(scenario("A1"))
    never = row(run, "never")
    assert ended(run, "never") == ("rejected", 0)
    assert "63 blocks for the prompt alone" in run.requests.detail[never]
    assert "66 with all its output" in run.requests.detail[never]
    assert "49" in run.requests.detail[never]
    for ok in ("ok1", "ok2"):
        how, ns = ended(run, ok)
        assert (how, step_of(ns)) == ("finished", 50)
        assert run.requests.admitted_ns[row(run, ok)] == 0
    assert sum(run.requests.preemptions) == 0
    assert run.engines[0].peak_used_blocks == 8  # 4 each


def test_a4_two_equal_requests_one_recompute() -> None:
    run = replay(scenario("A4"))
    assert ended(run, "r0") == ("finished", 350 * MS)
    assert ended(run, "r1") == ("finished", 550 * MS)
    r1 = row(run, "r1")
    assert run.requests.preemptions[r1] == 1
    assert run.requests.lost_tokens[r1] == 48
    times = tokens_ms(run, "r1")
    assert len(times) == 35
    assert times[14] == 150  # the 15th token before the preemption at the start of step 16
    assert times[15] == 360  # the 16th comes out of the recompute in step 36
    steps = run.logs[0].steps
    at = list(steps.start_ns).index(350 * MS)
    assert list(steps.prefill_tokens)[at] == 49
    assert run.engines[0].peak_used_blocks == 6


def test_a4_with_ten_blocks_nobody_is_preempted() -> None:
    run = replay(scenario("A4", engine={"num_blocks": 10}))
    assert sum(run.requests.preemptions) == 0
    assert ended(run, "r0") == ended(run, "r1") == ("finished", 350 * MS)


def test_a4_conservative_runs_one_after_the_other() -> None:
    run = replay(scenario("A4", engine={"admission": "conservative"}))
    assert sum(run.requests.preemptions) == 0
    assert run.requests.admitted_ns[row(run, "r1")] == 350 * MS  # step 36
    assert ended(run, "r1") == ("finished", 700 * MS)


def test_a6_a_victim_already_scheduled_is_taken_out_of_the_step() -> None:
    run = replay(scenario("A6", max_steps=1))
    low, high = row(run, "L"), row(run, "H")
    steps = run.logs[0].steps
    assert list(steps.decode_requests) == [1]
    assert list(steps.prefill_tokens) == [0]
    assert list(steps.used_blocks) == [3]  # H holds 3, 1 is free
    assert run.requests.output_tokens[high] == 1
    assert run.requests.output_tokens[low] == 0
    assert run.requests.lost_tokens[low] == 7
    whole = replay(scenario("A6"))
    assert ended(whole, "L")[0] == ended(whole, "H")[0] == "finished"


@pytest.mark.parametrize(
    ("budget", "max_gap_s", "total_s", "decoded_meanwhile"),
    [("prefill-first", 78.3, 90.05, 1), ("decode-first", 1.35, 89.09, 58)],
)
def test_a7_decode_beside_a_prefill_burst(
    budget: str, max_gap_s: float, total_s: float, decoded_meanwhile: int
) -> None:
    policy = {"name": budget, "parameters": {"max_tokens": 3456}}
    run = replay(scenario("A7", policies={"budget": policy}))
    steps = run.logs[0].steps
    chunks = np.asarray(steps.prefill_tokens) > 0
    assert chunks.sum() == 58
    assert np.asarray(steps.decode_requests)[chunks].sum() == decoded_meanwhile
    times = np.array(tokens_ms(run, "stream")) / 1e3
    assert len(times) == 699
    assert np.diff(times).max() == pytest.approx(max_gap_s, abs=1e-9)
    assert times[-1] == pytest.approx(total_s, abs=5e-3)


def test_a10_admission_by_the_whole_prompt() -> None:
    run = replay(scenario("A10"))
    assert [step_of(round(ms * MS)) for ms in tokens_ms(run, "A")] == [3, 4, 5, 6]
    assert run.requests.admitted_ns[row(run, "W")] == 60 * MS  # step 7
    assert [step_of(round(ms * MS)) for ms in tokens_ms(run, "W")] == [10]
    assert sum(run.requests.preemptions) == sum(run.requests.lost_tokens) == 0


def test_a10_with_the_gate_off_there_is_more_work_for_the_same_result() -> None:
    run = replay(scenario("A10", engine={"full_prompt_must_fit": False}))
    w = row(run, "W")
    assert run.requests.admitted_ns[w] == 20 * MS  # step 3
    assert run.requests.preemptions[w] == 1
    assert run.requests.lost_tokens[w] == 10
    assert [step_of(round(ms * MS)) for ms in tokens_ms(run, "W")] == [10]


@pytest.mark.parametrize(
    ("admission", "max_tokens", "at_once"),
    [("conservative", 8000, 1), ("conservative", 100, 58), ("optimistic", 8000, 100)],
)
def test_a12_reservation_decides_how_many_run(admission: str, max_tokens: int, at_once: int) -> None:
    run = replay(
        scenario("A12", engine={"admission": admission}, workload={"max_tokens": f"fixed:{max_tokens}"}, max_steps=1)
    )
    assert list(run.logs[0].steps.running) == [at_once]


def test_a12_optimistic_pays_with_preemptions() -> None:
    """100 start, 58 fit at full length (17 blocks each)."""
    run = replay(scenario("A12", limit=100))
    assert all(STATES[state].value == "finished" for state in run.requests.state)
    assert sum(count > 0 for count in run.requests.preemptions) == 42


def test_a12_profiled_reserves_what_is_predicted() -> None:
    """18 blocks each for 160 + 127 entries: 55; nobody is preempted, and when lengths are known 58 run."""
    choice = {"name": "profiled", "parameters": {"estimate": 128}}
    first = replay(scenario("A12", policies={"admission": choice}, max_steps=1))
    assert list(first.logs[0].steps.running) == [55]
    assert list(first.logs[0].steps.reserved_blocks) == [55 * 18]
    whole = replay(scenario("A12", policies={"admission": choice}))
    assert all(STATES[state].value == "finished" for state in whole.requests.state)
    assert sum(whole.requests.preemptions) == 0
    assert whole.logs[0].steps.running.max() == 58


@pytest.mark.parametrize(
    ("block_tokens", "prompt", "outputs", "held"),
    [
        (4, 3, 7, [1, 1, 2, 2, 2, 2, 3]),  # KV 3, 4, 5, 6, 7, 8, 9
        (256, 256, 2, [1, 2]),
        (4, 4, 1, [1]),
        (4, 4, 2, [1, 2]),
    ],
)
def test_b1_a_block_is_needed_when_the_kv_passes_the_boundary(
    block_tokens: int, prompt: int, outputs: int, held: list[int]
) -> None:
    """Also that a full pool does not matter to a step that needs no block: the pool is exactly as large as needed."""
    core = EngineCore(Reference(block_size=block_tokens, num_blocks=held[-1]).spec(UNKNOWN_HARDWARE), max_stretch=1)
    request = Request("r", prompt_tokens=prompt, max_tokens=outputs)
    core.submit(request, stop_after=outputs)
    found = []
    while (plan := core.plan_step()) is not None:
        assert not plan.preempted
        found.append(core.used_blocks)
        core.commit_step(plan, 1)
    assert found == held


def prefix_engine(*, total: int = 10) -> EngineCore:
    return EngineCore(Reference(block_size=4, num_blocks=total, prefix_cache=True).spec(UNKNOWN_HARDWARE))


X = (1, 2, 3, 4)
"""A prefix of 16 tokens in blocks of 4."""


def sharer(name: str, prompt_tokens: int) -> Request:
    return Request(name, prompt_tokens=prompt_tokens, max_tokens=8, content=Content(X, shared_blocks=4, owner=0))


def test_b4_hits_taken_from_the_free_pool_are_not_free_any_more() -> None:
    core = prefix_engine()
    core.store.seed(sharer("", 16), 4)
    running = Request("A", prompt_tokens=14, max_tokens=8, content=Content((), shared_blocks=0, owner=0))
    core.place(running, computed_tokens=14, output_tokens=1, stop_after=8)
    assert core.store.free_blocks == 6  # 2 empty + 4 cached
    newcomer = sharer("R", 32)
    core.submit(newcomer, stop_after=8)
    plan = core.plan_step()
    assert plan is not None
    assert plan.deferred is not None
    assert plan.deferred.blocker is Blocker.BLOCKS
    assert newcomer not in core.running


def test_b4_hits_that_somebody_references_cost_nothing() -> None:
    core = prefix_engine()
    holder = sharer("A", 16)
    core.place(holder, computed_tokens=16, output_tokens=1, stop_after=8)
    newcomer = sharer("R", 32)
    core.submit(newcomer, stop_after=8)
    hit = core.store.match(newcomer)
    assert (hit.blocks, hit.free_blocks) == (4, 0)
    assert core.spec.admission.open(core).decide(core, newcomer, hit, 8) is ADMIT
    plan = core.plan_step()
    assert plan is not None
    assert newcomer in core.running
    core.commit_step(plan, 1)
    core.cancel(holder)
    assert core.store.free_blocks == 10 - 8  # X stays with R: not evictable
    core.check_invariants()


def test_b10_cached_tokens_cost_no_budget() -> None:
    run = replay(scenario("B10", max_steps=1))
    steps = run.logs[0].steps
    assert list(steps.prefill_tokens) == [209]
    assert run.requests.hit_tokens[0] == 256
    assert list(steps.used_blocks) == [2]
    assert tokens_ms(run, "r") == [10]  # one step: 209 <= 300


def test_c1_a_queue_timeout_fires_at_its_own_time() -> None:
    run = replay(scenario("C1"))
    assert ended(run, "B") == ("timed_out", 11_000 * MS)
    assert run.requests.output_tokens[row(run, "B")] == 0
    assert run.requests.admitted_ns[row(run, "B")] == -1
    assert ended(run, "A") == ("finished", 90_000 * MS)


@pytest.mark.parametrize(("timeout_s", "how"), [(89, "timed_out"), (89.000000001, "finished")])
def test_c1_a_deadline_at_the_moment_when_it_could_start_has_timed_out(timeout_s: float, how: str) -> None:
    """The tie rule: timeouts come before the step boundary of the same instant."""
    requests = scenario("C1").model_dump(mode="json")["workload"]["requests"]
    requests[1]["queue_timeout_s"] = timeout_s
    run = replay(scenario("C1", workload={"requests": requests}))
    assert ended(run, "B")[0] == how
    assert ended(run, "A") == ("finished", 90_000 * MS)


@pytest.mark.parametrize(
    ("prompt", "asked", "strict", "clip"),
    [
        (3474, 60, "prompt of 3474 tokens > max_model_len 2048", "prompt of 3474 tokens > max_model_len 2048"),
        (
            2048,
            1,
            "prompt of 2048 tokens leaves no room for output: max_model_len 2048",
            "prompt of 2048 tokens leaves no",
        ),
        (2000, 60, "prompt 2000 + max_tokens 60 = 2060 > max_model_len 2048", 48),
        (2047, 10, "prompt 2047 + max_tokens 10 = 2057 > max_model_len 2048", 1),
        (1988, 60, 60, 60),
    ],
)
def test_c4_prompt_and_output_against_max_model_len(
    prompt: int, asked: int, strict: str | int, clip: str | int
) -> None:
    """A number is the max_tokens it may have; a text is why it is refused."""
    for mode, expected in (("reject", strict), ("clip", clip)):
        config = Reference(max_model_len=2048, longer_than_model=mode, num_blocks=1000)  # type: ignore[arg-type]
        core = EngineCore(config.spec(UNKNOWN_HARDWARE))
        request = Request("r", prompt_tokens=prompt, max_tokens=asked)
        decision = core.submit(request, stop_after=asked)
        if isinstance(expected, str):
            assert decision.verdict is Verdict.REJECT
            assert decision.detail.startswith(expected)
        else:
            assert decision is ADMIT
            assert request.max_tokens == expected


def test_c7_a_full_front_door_refuses_at_once_and_counts_it() -> None:
    run = replay(scenario("C7"))
    states = [STATES[state].value for state in run.requests.state]
    assert states == ["finished"] * 128 + ["rejected"] * 372
    assert set(run.requests.end_ns[128:]) == {0}
    assert set(run.requests.reason.values()) == {"length", "queue full: max_in_flight"}
    assert run.requests.detail[499] == "128 inside, max_in_flight is 128"
    metrics = compute(run)
    assert metrics.value("admission_ratio") == 0.256
    assert metrics.value("slo_met_offered_ratio") == 0.256
    assert metrics.value("slo_met_finished_ratio") == 1.0
    assert metrics["p99_ttft_s"].n == 128
    assert metrics.value("p99_ttft_s") == pytest.approx(0.01)
    assert never_served(metrics) == "P99 TTFT of offered: inf (74.4 % were never served)"


def test_c7_with_overflow_queue_everybody_gets_in() -> None:
    run = replay(scenario("C7", front={"overflow": "queue"}))
    assert all(STATES[state].value == "finished" for state in run.requests.state)
    waited = np.asarray(run.requests.admitted_ns) > 0
    assert waited.sum() == 372
    # Two steps each: the last 116 come in after three rounds of 128.
    assert [int(each) // MS for each in np.unique(run.requests.admitted_ns)] == [0, 20, 40, 60]
    metrics = compute(run)
    assert metrics.value("admission_ratio") == 1.0
    assert metrics.value("queue_policy_s") == pytest.approx(0.02 * 128 + 0.04 * 128 + 0.06 * 116)


def with_a_decoder(case: str, arrival_s: float, **changes: Any) -> RunResult:
    """The case with one stream decoding before and beside it; the prompt comes at the end of its first step."""
    decoder = {
        "id": "stream",
        "prompt_tokens": 1,
        "computed_tokens": 1,
        "output_tokens": 1,
        "remaining_output_tokens": 100,
    }
    requests = scenario(case).model_dump(mode="json")["workload"]["requests"]
    requests[0]["arrival_s"] = arrival_s
    return replay(scenario(case, initial={"running": [decoder]}, workload={"requests": requests}, **changes))


@pytest.mark.parametrize(("budget", "ttft_ms"), [(2048, 449.6), (8192, 419.6)])
def test_g1_alone_a_larger_budget_saves_7_percent(budget: int, ttft_ms: float) -> None:
    assert tokens_ms(replay(scenario("G1", engine={"token_budget": budget})), "prompt") == [pytest.approx(ttft_ms)]


@pytest.mark.parametrize(
    ("budget", "ttft_ms", "max_itl_ms"), [(2048, 459.85, 112.4), (8192, 429.7, 419.6), (2800, None, 150.0)]
)
def test_g1_beside_a_decoder_the_gap_is_what_grows(budget: int, ttft_ms: float | None, max_itl_ms: float) -> None:
    run = with_a_decoder("G1", 0.01005, engine={"token_budget": budget})
    if ttft_ms is not None:
        assert tokens_ms(run, "prompt")[0] - 10.05 == pytest.approx(ttft_ms)
    assert np.diff(tokens_ms(run, "stream")).max() == pytest.approx(max_itl_ms)


@pytest.mark.parametrize(("engine", "ttft_ms"), [({}, 61.2), ({"token_budget": 512}, 71.2)])
def test_g6_alone_chunking_costs(engine: dict[str, int], ttft_ms: float) -> None:
    assert tokens_ms(replay(scenario("G6", engine=engine)), "prompt") == [pytest.approx(ttft_ms)]


@pytest.mark.parametrize(
    ("engine", "ttft_ms", "max_itl_ms"), [({}, 61.25, 61.25), ({"token_budget": 512}, 81.35, 35.6)]
)
def test_g6_beside_a_decoder_chunking_buys_short_gaps(
    engine: dict[str, int], ttft_ms: float, max_itl_ms: float
) -> None:
    run = with_a_decoder("G6", 0.01005, engine=engine)
    assert tokens_ms(run, "prompt")[0] - 10.05 == pytest.approx(ttft_ms)
    assert np.diff(tokens_ms(run, "stream")).max() == pytest.approx(max_itl_ms)
