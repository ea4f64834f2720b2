"""How numbers and foreign text are written."""

from __future__ import annotations

import math

import pytest

from sim.results.wording import clipped, count, number, percent, visible


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.03124, "0.0312"), (0.001, "0.00100"), (3.1, "3.10"), (9.996, "10.0"), (21.44, "21.4"),
        (-21.44, "-21.4"), (99.97, "100"), (411.6, "412"), (999.6, "1,000"), (1000, "1,000"), (19204.4, "19,204"),
        (math.inf, "inf"), (1e-12, "1.00e-12"),
    ],
)  # fmt: skip
def test_three_digits(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0, "0 %"), (0.0001, "<0.1 %"), (0.858, "85.8 %"), (0.9999, ">99.9 %"), (1, "100 %"), (0.9994, "99.9 %")],
)
def test_shares(ratio: float, text: str) -> None:
    assert percent(ratio) == text


def test_plurals() -> None:
    assert [count(1, "row"), count(1200, "row")] == ["1 row", "1,200 rows"]


def test_foreign_text_is_visible_and_cut() -> None:
    assert visible("a\x00b\x1b\u202e\U000e0001é") == "a\\x00b\\x1b\\u202e\\U000e0001é"
    assert clipped("abcdef", 4) == "abc…"
