"""The worked cases of part (d), with their exact numbers, on books written by hand; goodput against brute force."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.core.lifecycle import State
from sim.replay import replay
from sim.results.measure import Measured
from sim.results.metrics import Metrics, compute
from sim.results.run import RunResult, Slo
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


def test_d1_a_recorded_request_without_output_is_counted_as_failed_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,1\n0.1,10,0\n0.2,10,5\n")
    workload = {"kind": "trace", "path": str(tmp_path / "t.csv")}
    run = replay(make_scenario({"workload": workload, "cost": {"kind": "linear", "a_s": 0.01, "b_s_per_token": 0}}))
    assert len(run.trace.failed_rows) == 1
    metrics = compute(run)
    assert (metrics.value("num_offered"), metrics["mean_ttft_s"].n, metrics["mean_tpot_s"].n) == (2, 2, 1)


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
    assert metrics.value("p50_itl_event_s") == metrics.value("p99_itl_event_s") == pytest.approx(0.05)
    sums = [metrics.value(f"mean_{name}") * metrics[f"mean_{name}"].n for name in ("itl_event_s", "itl_token_s")]
    assert sums == pytest.approx([0.15, 0.15])


def test_d3_a_target_for_gaps_of_events_fails_though_tpot_passes(run_by_hand: ByHand) -> None:
    rows = [{"token_s": [0.1, 0.15, 0.2, 0.25], "output_tokens": 10}]
    metrics = compute(run_by_hand(rows, slo=Slo(tpot_s=0.02)))
    assert metrics.value("slo_tpot_met_offered_ratio") == 1
    assert metrics.value("max_longest_gap_s") == pytest.approx(0.05)


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
    metrics, measured = compute(run), Measured(run)
    assert ((measured.e2e_ns - measured.queue_ns) / 1e9).tolist() == pytest.approx([0.5] * 8)  # from dispatch
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
    assert metrics.value("slo_ttft_met_finished_ratio") == pytest.approx(3 / 4)
    assert metrics.value("slo_tpot_met_finished_ratio") == pytest.approx(3 / 4)


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
