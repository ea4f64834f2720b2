"""Bins over time keep integrals and extremes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.results.measure import Measured
from sim.results.run import RunResult
from sim.results.timeline import Curve, band, edges_ns, of_plans, population, waiting, waiting_by_blocker

stays = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 40)), min_size=1, max_size=20)


@given(stays)
def test_a_band_has_the_mean_and_the_extremes_of_each_bin(pairs: list[tuple[int, int]]) -> None:
    enters = np.array([enter for enter, _ in pairs])
    leaves = enters + np.array([stay for _, stay in pairs])
    edges = np.arange(0, 141, 20)
    found = band(population(enters, leaves), edges)
    inside = np.array([((enters <= t) & (t < leaves)).sum() for t in range(140)]).reshape(7, 20)
    assert found.mean == pytest.approx(inside.mean(axis=1))
    assert found.high.tolist() == inside.max(axis=1).tolist()
    assert found.low.tolist() == inside.min(axis=1).tolist()


def test_a_sloping_curve_is_averaged_along_its_slope() -> None:
    found = band(Curve(np.array([0, 10, 20]), np.array([0.0, 10.0, 0.0])), np.array([0, 5, 20]))
    assert found.mean == pytest.approx([2.5, (7.5 * 5 + 5 * 10) / 15])
    assert (found.low.tolist(), found.high.tolist()) == ([0, 0], [5, 10])


def test_nothing_is_a_curve_too() -> None:
    found = band(population(np.zeros(0, np.int64), np.zeros(0, np.int64)), np.array([0, 5, 20]))
    assert found.mean.tolist() == found.high.tolist() == [0, 0]


def test_waiting_by_blocker_integrates_to_the_time_waited(busy: RunResult) -> None:
    measured = Measured(busy)
    for bins in (1, 7, 160):
        edges = edges_ns(measured, bins)
        areas = (waiting_by_blocker(measured, edges) * np.diff(edges)).sum(axis=1)
        assert areas == pytest.approx(measured.blocked_ns.sum(axis=1), rel=1e-6, abs=1)


def test_waiting_is_what_arrivals_see_at_most(busy: RunResult) -> None:
    measured = Measured(busy)
    assert band(waiting(measured), edges_ns(measured, 10)).high.max() >= max(measured.waiting_seen) - 2


def test_plans_weigh_as_long_as_they_last_and_idle_time_is_zero(busy: RunResult) -> None:
    measured = Measured(busy)
    plans = measured.plans[0]
    edges = edges_ns(measured, 9)
    areas = band(of_plans(plans, plans.used_blocks), edges).mean * np.diff(edges) / 1e9
    assert areas.sum() == pytest.approx(plans.sum_over_time(plans.used_blocks), rel=0.01)
