"""How differences are written."""

from __future__ import annotations

import pytest

from sim.results.comparison.replications import Difference
from sim.results.comparison.words import interval, signed


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.079, "+7.9 %"),
        (-0.006, "-0.6 %"),
        (0.33, "+33 %"),
        (12.4, "+1,240 %"),
        (0.0004, "0 %"),
        (-0.0004, "0 %"),
        (-1, "-100 %"),
    ],
)
def test_a_ratio_in_percent(ratio: float, text: str) -> None:
    assert signed(ratio) == text


def test_an_interval() -> None:
    assert interval(Difference(1, 1, 10, 0.079, 0.068, 0.091)) == "[+6.8, +9.1]"
    assert interval(Difference(1, 1, 10, 2.0, -0.5, 4.0)) == "[-50, +400]"
    assert interval(Difference(1, 1, 10, 0.0, -0.0001, 0.0001)) == "[+0.0, +0.0]"
    assert interval(Difference(1, 1, 1, 0.079)) == ""
