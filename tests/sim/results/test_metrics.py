"""Metrics on runs in which everything happens, and what is said where there is no value."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sim.core.lifecycle import State
from sim.replay import replay
from sim.results.catalog import SINGLES, SPREADS
from sim.results.measure import Measured
from sim.results.metrics import STATISTICS, compute
from sim.results.run import RunResult
from sim.results.verdict import RunState
from sim.scenario import make_scenario

ByHand = Callable[..., RunResult]


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
    metrics = compute(run_by_hand([{"token_s": [at + 0.1, at + 0.2], "arrival_s": at} for at in range(100)]))
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
    run = run_by_hand([{"token_s": [0.1, 0.2]}])
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
