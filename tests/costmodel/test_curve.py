"""Piecewise linear prices over KV tokens: knees, rounding, and the two ways to evaluate a stretch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.curve import UNBOUNDED_TOKENS, VECTOR_STEPS, curve_ns, flat_curve, hinged_curve, stretch_ns

LINE = ((UNBOUNDED_TOKENS, 0.5, 1.0),)
"""Half a nanosecond, and one per token."""


@pytest.mark.parametrize("steps", [1, 4, VECTOR_STEPS, 100])
def test_halves_round_to_even(steps: int) -> None:
    """0.5, 1.5, 2.5, 3.5 are 0, 2, 2, 4, by list comprehension and by numpy."""
    assert stretch_ns(LINE, 0, 1, steps) == [(n // 2 + n % 2) * 2 for n in range(steps)]


def test_hinges_add_up_beyond_their_knees() -> None:
    """1 ns per token, 2 more beyond 10, 3 more beyond 100."""
    curve = hinged_curve([(0, 1e-9), (10, 2e-9), (100, 3e-9)])
    found = [curve_ns(curve, tokens) for tokens in (0, 10, 11, 100, 101)]
    assert found == pytest.approx([0, 10, 13, 280, 286])
    assert len(curve) == 3


def test_equal_knees_and_no_hinges() -> None:
    assert curve_ns(hinged_curve([(5, 1e-9), (5, 1e-9)]), 7) == pytest.approx(4)
    assert hinged_curve([]) == ((UNBOUNDED_TOKENS, 0.0, 0.0),)


def test_a_flat_curve_in_nanoseconds() -> None:
    assert curve_ns(flat_curve(0.25), 123) == 250_000_000


@given(
    knees=st.lists(st.integers(0, 3000), max_size=4),
    start=st.integers(0, 2000),
    growth=st.integers(0, 40),
    steps=st.integers(1, 150),
)
def test_a_stretch_is_its_steps(knees: list[int], start: int, growth: int, steps: int) -> None:
    """However many knees it crosses, and in pieces shorter or longer than numpy is used for."""
    curve = hinged_curve([(knee, 0.37e-9 * (i + 1)) for i, knee in enumerate(sorted(knees))])
    values = [round(curve_ns(curve, start + growth * i)) for i in range(steps)]
    assert stretch_ns(curve, start, growth, steps) == values
    assert values == sorted(values)
