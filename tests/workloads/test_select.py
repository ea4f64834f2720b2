"""Pure changes to a trace."""

from __future__ import annotations

import math

import numpy as np
import pytest

from workloads.select import limit, scale_rate, take
from workloads.trace import BadRow, PrefixIds, Trace


def column(*values):
    return np.array(values, dtype=np.int64)


@pytest.fixture
def trace():
    return Trace(
        name="t",
        format="made",
        arrival_ns=column(1000, 2001, 2001, 5000),
        prompt_tokens=column(1, 2, 3, 4),
        output_tokens=column(5, 6, 7, 8),
        max_tokens=column(-1, 9, -1, 9),
        request_ids=["a", "b", "c", "d"],
        priority=column(0, 1, 2, 3),
        clients=["x", "y", "x", "y"],
        queue_timeout_ns=column(10, 20, 30, 40),
        timeout_ns=column(11, 21, 31, 41),
        cancel_after_ns=column(12, 22, 32, 42),
        prefix=PrefixIds(16, [(0,), (0, 1), (), (2,)]),
        sha256="00",
        bad_rows=(BadRow("t:9", "bad"),),
        notes=("first note",),
    )


def test_take_takes_every_column_in_the_order_asked(trace):
    taken = take(trace, column(3, 0))
    assert taken.arrival_ns.tolist() == [5000, 1000]
    assert taken.prompt_tokens.tolist() == [4, 1]
    assert taken.output_tokens.tolist() == [8, 5]
    assert taken.max_tokens.tolist() == [9, -1]
    assert (taken.request_ids, taken.clients) == (["d", "a"], ["y", "x"])
    assert taken.priority.tolist() == [3, 0]
    assert taken.queue_timeout_ns.tolist() == [40, 10]
    assert taken.timeout_ns.tolist() == [41, 11]
    assert taken.cancel_after_ns.tolist() == [42, 12]
    assert taken.prefix == PrefixIds(16, [(2,), (0,)])
    assert (taken.sha256, taken.bad_rows, taken.notes) == (trace.sha256, trace.bad_rows, trace.notes)


def test_limit_keeps_the_first_arrivals(trace):
    limited = limit(trace, 2)
    assert limited.request_ids == ["a", "b"]
    assert limited.notes == ("first note", "first 2 of 4 requests")
    assert len(trace) == 4


@pytest.mark.parametrize("num_requests", [4, 5])
def test_a_limit_that_cuts_nothing_changes_nothing(trace, num_requests):
    assert limit(trace, num_requests) is trace


def test_limit_below_1(trace):
    with pytest.raises(ValueError, match="num_requests must be >= 1, got 0"):
        limit(trace, 0)


def test_scale_rate_divides_arrivals_and_nothing_else(trace):
    faster = scale_rate(trace, 2)
    assert faster.arrival_ns.tolist() == [500, 1000, 1000, 2500]  # 1000.5 rounds to even
    assert faster.arrival_ns.dtype == np.int64
    assert faster.timeout_ns.tolist() == trace.timeout_ns.tolist()
    assert faster.output_tokens.tolist() == trace.output_tokens.tolist()
    assert faster.notes[-1] == "arrival rate scaled by 2"
    assert scale_rate(trace, 3).arrival_ns.tolist() == [333, 667, 667, 1667]
    assert scale_rate(trace, 0.25).arrival_ns.tolist() == [4000, 8004, 8004, 20000]
    assert trace.arrival_ns.tolist() == [1000, 2001, 2001, 5000]


@pytest.mark.parametrize("factor", [0, -1, math.inf, math.nan])
def test_scale_rate_needs_a_finite_factor_above_0(trace, factor):
    with pytest.raises(ValueError, match=f"factor must be finite and > 0, got {factor}"):
        scale_rate(trace, factor)


def test_scale_rate_beyond_the_clock(trace):
    with pytest.raises(
        ValueError, match=r"factor=1e-16 must leave arrivals below 2\*\*62 ns, the last is at 5e\+19 ns"
    ):
        scale_rate(trace, 1e-16)
