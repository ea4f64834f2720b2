"""The linear model and the cases that are calculated with it: A7, G1, G6."""

from __future__ import annotations

import math

import pytest

from costmodel.config import LinearConfig, build_cost_model
from costmodel.shape import StepShape

TEACHING = build_cost_model(LinearConfig(a_s=0.010, b_s_per_token=0.05e-3))
"""T = 10 + 0.05 n ms."""


def step_ms(prefill_tokens: int = 0, decodes: int = 0) -> float:
    chunks = ((prefill_tokens, 0),) if prefill_tokens else ()
    return TEACHING.step_times_ns(StepShape(chunks, decodes, 1000 * decodes), 1)[0] / 1e6


@pytest.mark.parametrize(
    ("prefill_tokens", "decodes", "milliseconds"),
    [(2048, 0, 112.4), (2047, 1, 112.4), (4, 1, 10.25), (8192, 0, 419.6), (8191, 1, 419.6), (1, 1, 10.1)],
)
def test_g1_step_times(prefill_tokens: int, decodes: int, milliseconds: float) -> None:
    """Raising the budget from 2048 to 8192: each step of the case."""
    assert step_ms(prefill_tokens, decodes) == milliseconds


def test_g1_sums() -> None:
    """Four full steps and a rest, against two; the largest budget for 150 ms is 2800 tokens."""
    assert 4 * step_ms(2048) == pytest.approx(449.6)
    assert 4 * step_ms(2047, 1) + step_ms(4, 1) == pytest.approx(459.85)
    assert step_ms(8191, 1) + step_ms(1, 1) == pytest.approx(429.7)
    assert step_ms(2800) == 150.0
    assert step_ms(2801) > 150.0


def test_g6_step_times() -> None:
    """Chunked prefill of 1024 tokens alone, and beside one decoder."""
    assert (step_ms(1024), step_ms(512)) == (61.2, 35.6)
    assert 2 * step_ms(512) == pytest.approx(71.2)
    assert 2 * step_ms(511, 1) + step_ms(2, 1) == pytest.approx(81.35)


def test_a7_steps_with_prefill_have_their_own_line() -> None:
    """A chunk or mixed step takes 1.35 s whatever its size, a decode-only step 1/59.4 s."""
    model = build_cost_model(LinearConfig(a_s=1 / 59.4, b_s_per_token=0, prefill_a_s=1.35))
    chunk, mixed = StepShape(((3456, 0),)), StepShape(((3455, 3455),), 1, 500)
    decode = StepShape((), 1, 500)
    assert model.step_times_ns(chunk, 1) == model.step_times_ns(mixed, 1) == [1_350_000_000]
    assert model.step_times_ns(decode, 2) == [16_835_017, 16_835_017]
    assert math.ceil(200_019 / 3456) * model.seconds(chunk) == pytest.approx(78.3)
    assert 699 * model.seconds(decode) == pytest.approx(11.77, abs=0.005)


def test_prefill_defaults_to_the_plain_line() -> None:
    """Only what is given differs: here the slope."""
    model = build_cost_model(LinearConfig(a_s=1, b_s_per_token=1, prefill_b_s_per_token=2))
    assert model.seconds(StepShape(((10, 0),))) == 21
    assert model.seconds(StepShape((), 10, 0)) == 11


def test_verified_tokens_count_as_tokens() -> None:
    assert TEACHING.step_times_ns(StepShape(verify=((4, 100), (6, 5))), 1) == [10_500_000]


def test_parts_and_range() -> None:
    shape = StepShape(((100, 0),), 20, 5)
    assert TEACHING.parts(shape) == {"step": 0.010, "tokens": pytest.approx(0.006)}
    assert TEACHING.out_of_range(shape) is None
