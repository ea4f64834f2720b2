"""Tables, trade-offs and reasons of a comparison."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import compare, make_scenario, replay
from sim.results.comparison.comparison import Comparison
from sim.results.comparison.frontier import dominated, spots, trade_offs
from sim.results.metrics import compute

Base = Callable[..., dict[str, Any]]


def test_a_cell_is_the_run_it_says_it_is(single: Comparison) -> None:
    for cell in single.cells.values():
        again = compute(replay(make_scenario(cell.scenario)))
        assert {name: row.value for name, row in cell.rows.items()} == {n: row.value for n, row in again.rows.items()}


def test_all_variants_meet_the_same_requests(seeded: Comparison) -> None:
    for place in seeded.places:
        a, b = seeded.entries(place)
        for seed in a.cells:
            assert a.cells[seed].scenario["workload"] == b.cells[seed].scenario["workload"]
            assert a.cells[seed].rows["offered_per_s"].value == b.cells[seed].rows["offered_per_s"].value


def test_the_table_has_values_differences_and_intervals(seeded: Comparison, single: Comparison) -> None:
    row = seeded.table.loc[("synthetic", 1.0, "slots=12", "p99_ttft_s")]
    place = seeded.places[1]
    a, b = (np.mean(entry.values("p99_ttft_s", list(entry.cells))) for entry in seeded.entries(place))
    assert row["value"] == pytest.approx(b)
    assert row["vs_base"] == pytest.approx(b / a - 1)
    assert row["low"] < row["vs_base"] < row["high"]
    assert row["replications"] == 5
    alone = single.table.loc[("synthetic", 1.0, "slots=8", "goodput_per_s")]
    assert math.isnan(alone["low"])
    assert math.isnan(single.table.loc[("synthetic", 1.0, "slots=64", "goodput_per_s")]["vs_base"])


def test_pick_is_a_row_per_variant(single: Comparison, make_base: Base) -> None:
    assert list(single.pick("goodput_per_s").columns) == ["state", "goodput_per_s"]
    assert single.pick("goodput_per_s").index.names == ["rate_scale", "variant"]
    one_rate = compare(make_base(), {"a": {}, "b": {"engine": {"slots": 4}}})
    assert list(one_rate.pick("mean_ttft_s").index) == ["a", "b"]


def test_blocks_are_pieces_of_one_run(make_base: Base) -> None:
    found = compare(make_base(), vary={"slots": [64, 16]}, blocks=6)
    (cell, _) = found.cells.values()
    assert len(cell.blocks["mean_ttft_s"]) == 6
    place = found.places[0]
    difference = found.difference(place, "slots=16", "mean_ttft_s")
    assert difference is not None
    assert difference.n == 6
    assert difference.low is not None
    run = replay(make_scenario(cell.scenario))
    seen = run.request_table
    arrivals = seen["arrival_s"] - seen["arrival_s"].iloc[0]
    last = 7 * arrivals >= 6 * arrivals.iloc[-1]
    assert cell.blocks["mean_ttft_s"][-1] == pytest.approx(seen.loc[last, "ttft_s"].mean())
    span_s = arrivals.iloc[-1] / 7
    assert cell.blocks["goodput_per_s"][-1] == pytest.approx(seen.loc[last, "slo_met"].sum() / span_s)
    assert found.entries(place)[0].few("p99_ttft_s")
    assert not found.entries(place)[0].few("mean_ttft_s")
    pool = found.difference(place, "slots=16", "mean_kv_used_ratio")
    assert pool is not None
    assert pool.n == 1  # no request has it by itself


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=8))
def test_who_is_beaten(pairs: list[tuple[int, int]]) -> None:
    best = [pair for pair in pairs if not dominated(*pair, pairs)]
    assert best
    for latency, rate in pairs:
        beaten = any((a < latency and b >= rate) or (a <= latency and b > rate) for a, b in pairs)
        assert dominated(latency, rate, pairs) == beaten


def test_the_frontier_has_only_runs_with_a_steady_state(single: Comparison) -> None:
    for trade_off in trade_offs(single):
        found = spots(single, trade_off)
        stable = {(c.key.rate_scale, c.key.variant) for c in single.cells.values() if c.state.value == "STABLE"}
        assert {(spot.rate_scale, spot.variant) for spot in found} == stable
    assert set(single.pareto["dominated"]) <= {True, False}


def test_what_changed_is_counted_and_told(make_base: Base) -> None:
    found = compare(make_base(), {"wide": {}, "tight": {"engine": {"num_blocks": 120}}})
    assert any("KV blocks" in line or "preemptions" in line for line in found.why)
    assert "tight" in found.changed().columns.get_level_values("variant")


def test_figures_are_axes(single: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    import matplotlib.pyplot as plt

    for axes in (single.plot.goodput(), single.plot.pareto(), single.plot.cdf("tpot"), single.plot.scatter()):
        assert axes.get_figure() is not None
    plt.close("all")
