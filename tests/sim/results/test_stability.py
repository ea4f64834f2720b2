"""A growing backlog is unstable; bursts, noise and short traces are not."""

from __future__ import annotations

import numpy as np
import pytest

from sim.results.stability import trend

NS = 1_000_000_000
EVERY_SECOND = np.arange(1000) * NS


def unstable(arrival_ns: object, waiting: object) -> bool:
    return trend(np.asarray(arrival_ns, np.int64), np.asarray(waiting, np.int64)).unstable


def test_a_backlog_that_grows_is_unstable_and_says_by_how_much() -> None:
    found = trend(EVERY_SECOND, np.arange(1000))
    assert found.unstable
    assert found.first_half == pytest.approx(249.5, abs=1)
    assert found.second_half == pytest.approx(749.5, abs=1)


@pytest.mark.parametrize(
    ("what", "waiting"),
    [
        ("nobody waits", np.zeros(1000)),
        ("a standing queue", np.full(1000, 50)),
        ("less than the floor", np.arange(1000) // 300),
        ("a backlog that is worked off", np.arange(1000)[::-1]),
        ("a passing burst", np.where((np.arange(1000) > 600) & (np.arange(1000) < 700), 300, 1)),
        ("a burst at the end", np.where(np.arange(1000) > 800, 300, 1)),
    ],
)
def test_what_does_not_trend_up_is_stable(what: str, waiting: object) -> None:
    assert not unstable(EVERY_SECOND, waiting), what


def test_a_crowd_at_the_end_is_a_burst_however_large() -> None:
    arrivals = np.concatenate([np.arange(200) * NS, np.full(2000, 200 * NS)])
    assert not unstable(arrivals, np.concatenate([np.zeros(200), np.arange(2000)]))


def test_a_trace_that_arrives_at_once_has_no_trend() -> None:
    found = trend(np.zeros(1000, np.int64), np.arange(1000))
    assert (found.unstable, found.enough) == (False, False)


def test_few_arrivals_or_none_say_nothing() -> None:
    assert not trend(EVERY_SECOND[:19], np.arange(19)).enough
    assert not trend(EVERY_SECOND[:0], EVERY_SECOND[:0]).enough
