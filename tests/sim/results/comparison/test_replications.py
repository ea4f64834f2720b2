"""Intervals are paired, agree with scipy's own t, and exist only where there are replications."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sim.results.comparison.replications import difference, half_width


def test_the_interval_is_scipys() -> None:
    rng = np.random.default_rng(3)
    a = rng.normal(10, 1, 8)
    b = a + rng.normal(0.5, 0.2, 8)
    found = difference(a.tolist(), b.tolist())
    low, high = stats.ttest_rel(b, a).confidence_interval(0.95)
    assert found is not None
    assert found.n == 8
    assert found.ratio == pytest.approx((b.mean() - a.mean()) / a.mean())
    assert (found.low, found.high) == pytest.approx((low / a.mean(), high / a.mean()))


def test_pairing_sees_what_a_comparison_of_means_would_not() -> None:
    worlds = [1.0, 5.0, 9.0, 13.0]
    found = difference(worlds, [1.1, 5.1, 9.11, 13.09])
    assert found is not None
    assert found.shown is True


def test_a_single_run_has_no_interval() -> None:
    found = difference([2.16], [2.33])
    assert found is not None
    assert (found.n, found.low, found.high, found.shown) == (1, None, None, None)
    assert found.ratio == pytest.approx(0.0787, abs=1e-4)


@pytest.mark.parametrize(("base", "value"), [([1.0, None], [1.0, 2.0]), ([], []), ([1.0], [None]), ([1.0], [1.0, 2.0])])
def test_what_is_missing_is_not_compared(base: list[float | None], value: list[float | None]) -> None:
    assert difference(base, value) is None


def test_of_nothing_there_is_no_percentage() -> None:
    found = difference([0.0], [3.0])
    assert found is not None
    assert found.ratio is None


def test_intervals_cover_as_often_as_they_say() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        values = rng.normal(0, 1, 6)
        hits += abs(values.mean()) <= half_width(values.tolist())
    assert 0.92 <= hits / 400 <= 0.98
