"""Metrics on books written by hand (the worked cases), on runs, and against counting by brute force."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.core.lifecycle import State
from sim.replay import replay
from sim.results.catalog import SINGLES, SPREADS
from sim.results.measure import Measured
from sim.results.metrics import STATISTICS, Metrics, compute
from sim.results.run import RunResult, Slo
from sim.results.verdict import RunState
from sim.scenario import make_scenario

ByHand = Callable[..., RunResult]


def answer(ttft_s: float, tpot_s: float, tokens: int, arrival_s: float = 0.0) -> dict[str, Any]:
    """A finished request with equal gaps."""
    return {"token_s": [arrival_s + ttft_s + tpot_s * i for i in range(tokens)], "arrival_s": arrival_s}


# -- D1: TPOT with one token; goodput


D1 = Callable[..., Metrics]


@pytest.fixture
def d1(run_by_hand: ByHand) -> D1:
    def metrics(**slo: float) -> Metrics:
        return compute(
            run_by_hand([{"token_s": [0.3]}, {"token_s": [0.2, 0.3, 0.4, 0.5, 0.6]}], slo=Slo(**slo), end_s=2.0)
        )

    return metrics


def test_d1_tpot_is_over_answers_that_have_one(d1: D1) -> None:
    tpot = d1()["mean_tpot_s"]
    assert tpot.value == pytest.approx(0.1)
    assert tpot.n == 1


def test_d1_goodput_counts_the_tpot_of_one_token_as_zero(d1: D1) -> None:
    assert d1(tpot_s=0.05).value("goodput_per_s") == 0.5
    both = d1(ttft_s=0.25, tpot_s=0.15)
    assert both.value("goodput_per_s") == 0.5
    assert both.value("goodput_tokens_per_s") == 2.5


def test_d1_without_a_second_token_tpot_is_not_applicable(run_by_hand: ByHand) -> None:
    tpot = compute(run_by_hand([{"token_s": [0.3]}, {"token_s": [0.4]}]))["p50_tpot_s"]
    assert (tpot.value, tpot.state, tpot.n, tpot.note) == (None, "n/a", 0, "n=0: all answers have one token")


# -- D2, D3: definitions that differ between tools


def test_d2_tpot_itl_and_time_per_token(run_by_hand: ByHand) -> None:
    metrics = compute(run_by_hand([{"token_s": [1.0, 1.5]}, answer(0.2, 0.1, 11)]))
    assert metrics.value("mean_tpot_s") == pytest.approx(0.3)
    assert metrics.value("mean_itl_event_s") == pytest.approx(1.5 / 11)
    assert metrics["mean_itl_event_s"].n == 11
    assert metrics.value("mean_e2e_s_per_token") == pytest.approx(0.42955, abs=1e-5)


def test_d3_gaps_between_events_and_between_tokens_are_two_things(run_by_hand: ByHand) -> None:
    metrics = compute(run_by_hand([{"token_s": [0.1, 0.15, 0.2, 0.25], "output_tokens": 10}]))
    assert metrics.value("mean_tpot_s") == pytest.approx(0.15 / 9)
    assert (metrics.value("mean_itl_event_s"), metrics["mean_itl_event_s"].n) == (pytest.approx(0.05), 3)
    assert (metrics.value("mean_itl_token_s"), metrics["mean_itl_token_s"].n) == (pytest.approx(0.15 / 9), 9)
    assert metrics.value("p50_itl_token_s") == 0
    assert metrics.value("p99_itl_event_s") == pytest.approx(0.05)


# -- D4: queueing is part of the latency


def test_d4_latency_is_from_arrival_and_the_wait_is_shown_apart() -> None:
    requests = [{"arrival_s": k / 10, "prompt_tokens": 10, "output_tokens": 1} for k in range(8)]
    run = replay(
        make_scenario(
            {
                "workload": {"kind": "inline", "requests": requests},
                "engine": {"preset": "reference", "slots": 1},
                "cost": {"kind": "linear", "a_s": 0.5, "b_s_per_token": 0.0},
            }
        )
    )
    metrics = compute(run)
    assert metrics.value("mean_queue_s") == pytest.approx(1.4)
    assert metrics.value("mean_e2e_s") == pytest.approx(1.9)
    assert metrics.value("p99_e2e_s") == pytest.approx(3.272)
    assert metrics.value("max_e2e_s") == pytest.approx(3.3)
    step_s = 0.4 + 0.3 + 0.2 + 0.1  # four came into the first one's step
    assert metrics.value("queue_step_s") == pytest.approx(step_s)
    assert metrics.value("queue_slots_s") == pytest.approx(8 * 1.4 - step_s)


# -- D7: goodput


def test_d7_all_targets_per_request_equality_passes_and_rejects_are_in_the_denominator(run_by_hand: ByHand) -> None:
    done = [answer(0.1, 0.02, 50), answer(0.1, 0.06, 50), answer(0.9, 0.02, 200), answer(0.5, 0.05, 100)]
    rejected = {"state": State.REJECTED}
    metrics = compute(run_by_hand([*done, rejected], slo=Slo(ttft_s=0.5, tpot_s=0.05), end_s=10.0))
    assert metrics.value("goodput_per_s") == pytest.approx(0.2)
    assert metrics.value("goodput_tokens_per_s") == pytest.approx(15)
    assert metrics.value("slo_met_offered_ratio") == pytest.approx(0.4)
    assert metrics.value("slo_met_finished_ratio") == pytest.approx(0.5)
    assert metrics.value("slo_ttft_met_offered_ratio") == pytest.approx(3 / 5)
    assert metrics.value("slo_tpot_met_offered_ratio") == pytest.approx(3 / 5)


request = st.tuples(
    st.sampled_from([State.FINISHED, State.FINISHED, State.REJECTED, State.TIMED_OUT, State.RUNNING]),
    st.sampled_from([0.1, 0.5, 0.9]),
    st.sampled_from([0.02, 0.05, 0.08]),
    st.integers(1, 5),
)


@given(st.lists(request, min_size=1, max_size=20), st.sampled_from([None, 0.5]), st.sampled_from([None, 0.05]))
def test_goodput_is_what_counting_request_by_request_gives(
    run_by_hand: ByHand, requests: list[tuple[State, float, float, int]], ttft: float | None, tpot: float | None
) -> None:
    done = []
    good = tokens = 0
    for state, ttft_s, tpot_s, count in requests:
        done.append(answer(ttft_s, tpot_s, count) | {"state": state})
        meets_tpot = tpot is None or count == 1 or tpot_s <= tpot
        if state is State.FINISHED and (ttft is None or ttft_s <= ttft) and meets_tpot:
            good, tokens = good + 1, tokens + count
    metrics = compute(run_by_hand(done, slo=Slo(ttft_s=ttft, tpot_s=tpot), end_s=10.0))
    if ttft is None and tpot is None:
        assert metrics["goodput_per_s"].state == "n/a"
    else:
        assert metrics.value("goodput_per_s") == pytest.approx(good / 10)
        assert metrics.value("goodput_tokens_per_s") == pytest.approx(tokens / 10)
        assert metrics.value("slo_met_offered_ratio") == pytest.approx(good / len(requests))


# -- on a run with everything in it


def test_the_run_has_everything_that_can_happen(busy: RunResult) -> None:
    metrics = compute(busy)
    for name in ("num_rejected", "num_timed_out", "num_cancelled", "num_preemptions", "prefix_hit_tokens",
                 "evicted_blocks", "queue_blocks_s", "queue_work_s", "queue_step_s"):  # fmt: skip
        assert metrics.value(name), name


def test_offered_is_the_sum_of_all_ends(busy: RunResult) -> None:
    metrics = compute(busy)
    assert metrics.value("num_offered") == sum(metrics.rows[f"num_{state.value}"].value or 0 for state in State) == 120


def test_what_waiting_was_for_adds_up_to_the_waiting(busy: RunResult) -> None:
    measured = Measured(busy)
    assert (measured.blocked_ns >= 0).all()
    admitted = measured.admitted
    assert (measured.blocked_ns.sum(axis=0)[admitted] == measured.queue_ns[admitted]).all()
    never = measured.arrived & ~admitted
    lived = np.asarray(busy.requests.end_ns) - busy.trace.arrival_ns
    assert (measured.blocked_ns.sum(axis=0)[never] == lived[never]).all()


def test_latencies_are_those_of_the_request_table(busy: RunResult) -> None:
    measured, metrics = Measured(busy), compute(busy)
    for name, values in (("ttft_s", measured.ttft_ns), ("e2e_s", measured.e2e_ns), ("queue_s", measured.queue_ns)):
        seconds = values[measured.served] / 1e9
        found = [row.value for row in metrics.spread(name)]
        expected = [seconds.mean(), *np.percentile(seconds, (50, 90, 95, 99)), seconds.max()]
        assert found == pytest.approx(expected), name


def test_who_was_never_served_waits_for_ever(busy: RunResult) -> None:
    metrics = compute(busy)
    row = metrics["p99_offered_ttft_s"]
    assert (row.value, row.state, row.n, row.population) == (None, "inf", 120, "offered")


def test_ratios_are_ratios(busy: RunResult) -> None:
    for row in compute(busy).rows.values():
        if row.unit == "ratio" and row.value is not None:
            assert 0 <= row.value <= 1, row.name


def test_splitting_stretches_changes_no_metric_but_the_estimates_inside_them(busy: RunResult) -> None:
    """Law 12. Blocks inside a stretch are interpolated; token-work over time weighs a stretch by its mean."""
    estimates = {"mean_kv_used_ratio", "mean_kv_cached_ratio", "mean_work_by_time", "mean_batch_requests_by_time"}
    split = compute(replay(make_scenario(busy.scenario), max_stretch=1))
    for name, row in compute(busy).rows.items():
        if row.value is not None:
            close = 0.01 if name in estimates else 1e-9
            assert split.rows[name].value == pytest.approx(row.value, rel=close), name
        assert (split.rows[name].n, split.rows[name].state) == (row.n, row.state), name
    assert split.reasons == compute(busy).reasons


def test_kv_use_over_time_is_that_of_single_steps(busy: RunResult) -> None:
    stretched = compute(busy).value("mean_kv_used_ratio")
    split = compute(replay(make_scenario(busy.scenario), max_stretch=1)).value("mean_kv_used_ratio")
    assert stretched == pytest.approx(split, rel=0.005)


def test_every_number_is_finite_or_says_why_not(busy: RunResult) -> None:
    for row in compute(busy).rows.values():
        if row.value is None:
            assert row.state == "inf" or (row.state == "n/a" and row.note)
        else:
            assert math.isfinite(row.value)


def test_names_are_unique_and_carry_their_units(busy: RunResult) -> None:
    metrics = compute(busy)
    assert len(metrics.rows) == len(SINGLES) + len(SPREADS) * len(STATISTICS)
    for row in metrics.rows.values():
        if row.unit == "s":
            assert row.name.endswith("_s"), row.name
        if row.unit == "ratio":
            assert row.name.endswith("_ratio"), row.name


# -- states


def test_a_percentile_of_few_says_so(run_by_hand: ByHand) -> None:
    metrics = compute(run_by_hand([answer(0.1, 0.01, 3, arrival_s=at) for at in range(100)]))
    assert [row.state for row in metrics.spread("ttft_s")] == ["ok", "ok", "ok", "few", "few", "ok"]


def test_an_unstable_run_keeps_counts_and_marks_latencies(busy_run: ByHand) -> None:
    metrics = compute(busy_run(400, slo={"ttft_s": 1.0}))
    assert metrics.verdict.state is RunState.UNSTABLE
    assert metrics["p50_ttft_s"].state == metrics["mean_queue_s"].state == "unstable"
    assert metrics["goodput_per_s"].state == metrics["num_finished"].state == metrics["p50_step_s"].state == "ok"
    assert metrics.verdict.lines[0].startswith("UNSTABLE: waiting requests per arrival ")


def test_a_stopped_run_is_partial_and_its_running_requests_are_not_in_latencies(busy_run: ByHand) -> None:
    metrics = compute(busy_run(rate_scale=0.25, max_sim_time_s=2))
    assert metrics.verdict.state is RunState.PARTIAL
    assert metrics.verdict.lines[0].startswith("PARTIAL: stopped at 2.00 s of 5.")
    assert "(--max-sim-time 2 s)" in metrics.verdict.lines[0]
    assert metrics["p50_ttft_s"].state == metrics["num_finished"].state == "partial"
    offered = metrics.value("num_offered")
    assert offered is not None
    assert 0 < offered < 120
    assert metrics.value("duration_s") == pytest.approx(2, abs=0.1)


def test_an_engine_that_could_not_go_on_is_said_first(run_by_hand: ByHand) -> None:
    run = run_by_hand([answer(0.1, 0.01, 3)])
    judged = compute(replace_outcome(run, stalled="nothing can run")).verdict
    assert (judged.state, judged.partial) == (RunState.STALLED, True)
    assert judged.lines[0] == "STALLED: nothing can run"


def replace_outcome(run: RunResult, **changes: Any) -> RunResult:
    return dataclasses.replace(run, outcome=dataclasses.replace(run.outcome, **changes))


def test_a_run_of_nothing_has_metrics(run_by_hand: ByHand) -> None:
    metrics = compute(run_by_hand([]))
    assert metrics.value("num_offered") == 0
    assert metrics["offered_per_s"].state == metrics["p50_ttft_s"].state == metrics["mean_step_s"].state == "n/a"


# -- what decodes leave for prompts


def test_prefill_starvation_is_seen() -> None:
    """Two decodes use up a budget of two; the third waits for work as long as both go on."""
    requests = [{"prompt_tokens": 1, "output_tokens": 20}] * 2 + [{"prompt_tokens": 4, "output_tokens": 1}]
    run = replay(
        make_scenario(
            {
                "workload": {"kind": "inline", "requests": requests},
                "engine": {"preset": "reference", "token_budget": 2},
                "cost": {"kind": "linear", "a_s": 0.01, "b_s_per_token": 0.0},
            }
        )
    )
    metrics = compute(run)
    assert metrics.value("num_starved_steps") == 19
    assert metrics.value("starved_s") == pytest.approx(0.19)
    assert metrics.value("queue_work_s") == pytest.approx(0.20)


def test_a_recompute_is_counted_once_and_its_wait_apart() -> None:
    """Case A4: one preemption, 48 entries lost; it waits from step 16 to step 36."""
    requests = [{"prompt_tokens": 34, "output_tokens": 35}] * 2
    run = replay(
        make_scenario(
            {
                "workload": {"kind": "inline", "requests": requests},
                "engine": {"preset": "reference", "num_blocks": 6},
                "cost": {"kind": "linear", "a_s": 0.01, "b_s_per_token": 0.0},
            }
        )
    )
    metrics = compute(run)
    assert [metrics.value(name) for name in ("num_preemptions", "lost_tokens", "recomputed_tokens")] == [1, 48, 48]
    assert metrics.value("max_requeue_s") == pytest.approx(0.20)
    assert metrics.value("max_longest_gap_s") == pytest.approx(0.21)
    assert metrics.value("max_kv_used_ratio") == 1
    assert metrics.value("num_steps") == 55
