"""The fit: finds the weights that made the data, has no bias under noise, and says how wrong it is."""

from __future__ import annotations

import numpy as np
import pytest

from calibrate.fit import fit_weights, held_out_errors, region_errors, worst_steps
from costmodel.shape import StepShape

RNG = np.random.Generator(np.random.PCG64(7))
MATRIX = RNG.uniform(1, 1000, size=(400, 4))
TRUTH = np.array([3e-3, 0.0, 2e-5, 7e-6])
SECONDS = MATRIX @ TRUTH
REGIONS = ["a"] * 300 + ["b"] * 100


def test_exact_data_give_exact_weights() -> None:
    assert fit_weights(MATRIX, SECONDS, REGIONS) == pytest.approx(TRUTH, rel=1e-6, abs=1e-12)


def test_noise_does_not_bias_the_total() -> None:
    """Relative errors of 30 %: weighting by 1/measured would come out 9 % low."""
    noisy = SECONDS * RNG.uniform(0.7, 1.3, size=len(SECONDS))
    predicted = MATRIX @ fit_weights(MATRIX, noisy, REGIONS)
    assert predicted.sum() / noisy.sum() == pytest.approx(1, abs=0.02)


def test_no_weight_is_negative() -> None:
    """A column that the data want negative gets nothing."""
    falling = SECONDS - 1e-6 * MATRIX[:, 1]
    weights = fit_weights(MATRIX, falling, REGIONS)
    assert (weights >= 0).all()
    assert weights[1] == 0


def test_every_region_counts_the_same() -> None:
    """A constant fitted to 300 steps of one second and 100 of three lies between, as if there were equally many."""
    seconds = np.array([1.0] * 300 + [3.0] * 100)
    (found,) = fit_weights(np.ones((400, 1)), seconds, REGIONS)
    assert found == pytest.approx(2.0)


def test_errors_by_region() -> None:
    predicted = np.array([1.1, 0.9, 2.0, 1.0])
    first, second, total = region_errors(predicted, np.array([1.0, 1.0, 1.0, 1.0]), ["x", "x", "y", "y"])
    assert (first.region, first.num_steps, first.mape_ratio, first.bias_ratio) == ("x", 2, 0.1, 0.0)
    assert (second.worst_ratio, second.bias_ratio, second.median_ratio) == (1.0, 0.5, 0.5)
    assert (total.region, total.num_steps, total.mape_ratio) == ("all", 4, 0.3)


def test_a_held_out_region_is_predicted_by_the_others() -> None:
    """Region b is 10 % slower than what a says: it is predicted 9 % too fast, and a 10 % too slow."""
    seconds = np.concatenate([SECONDS[:300], 1.1 * SECONDS[300:]])
    first, second, _ = held_out_errors(MATRIX, seconds, REGIONS)
    assert first.bias_ratio == pytest.approx(0.1, abs=1e-3)
    assert second.bias_ratio == pytest.approx(1 / 1.1 - 1, abs=1e-3)


def test_the_worst_steps_in_words() -> None:
    shapes = [StepShape(((5, 7),), 2, 18), StepShape((), 3, 30)]
    found = worst_steps(np.array([1.0, 0.5]), np.array([1.0, 1.0]), shapes, 2)
    assert found == (
        "-50.0%: 3 decodes at 10, composed 1000.00 ms",
        "+0.0%: chunk of 5 behind 7 + 2 decodes at 9, composed 1000.00 ms",
    )
