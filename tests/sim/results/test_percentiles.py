"""One code path for percentiles, equal to numpy's on the values written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.results.percentiles import Sample, enough_for

PERCENTS = (0.0, 50.0, 90.0, 95.0, 99.0, 100.0)
values = st.lists(st.floats(0, 1e6), min_size=1, max_size=40)


@given(values)
def test_plain_values_equal_numpy(numbers: list[float]) -> None:
    assert Sample(np.array(numbers)).percentiles(PERCENTS) == np.percentile(numbers, PERCENTS).tolist()


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(1, 9)), min_size=1, max_size=30))
def test_counted_values_equal_numpy_on_the_values_written_out(pairs: list[tuple[int, int]]) -> None:
    numbers, counts = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    sample, written_out = Sample(numbers.astype(float), counts), np.repeat(numbers, counts).astype(float)
    assert sample.percentiles(PERCENTS) == np.percentile(written_out, PERCENTS).tolist()
    assert sample.n == len(written_out)
    assert sample.mean() == pytest.approx(written_out.mean())
    assert sample.std() == pytest.approx(written_out.std(), abs=1e-3)
    assert sample.max() == written_out.max()


@given(values, st.integers(0, 5))
def test_infinite_members_count_and_are_reached(numbers: list[float], infinite: int) -> None:
    sample = Sample(np.array(numbers), infinite=infinite)
    ordered = [*sorted(numbers), *[math.inf] * infinite]
    for percent, value in zip(PERCENTS, sample.percentiles(PERCENTS), strict=True):
        rank = percent / 100 * (len(ordered) - 1)
        above = ordered[math.ceil(rank)]
        assert math.isinf(value) == math.isinf(above)
        assert ordered[math.floor(rank)] <= value * (1 + 1e-12) or value == 0
    assert math.isinf(sample.max()) == math.isinf(sample.mean()) == bool(infinite)


def test_a_percentile_needs_ten_beyond_it() -> None:
    assert [enough_for(99, n) for n in (999, 1000)] == [False, True]
    assert [enough_for(50, n) for n in (19, 20)] == [False, True]
