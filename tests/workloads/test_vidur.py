"""The Vidur dialect."""

from __future__ import annotations

import pytest

from workloads.formats import TraceError, read_trace

HEADER = "arrived_at,num_prefill_tokens,num_decode_tokens"


def test_seconds_are_exact_and_offsets_stay(trace_file):
    trace = read_trace(trace_file(HEADER, "2.0,4808,10", "2.1234567891,5,6", "1e1,7,8"))
    assert trace.format == "vidur"
    assert trace.arrival_ns.tolist() == [2_000_000_000, 2_123_456_789, 10_000_000_000]


def test_lengths_without_times_are_no_trace(trace_file):
    path = trace_file("num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio", "3772,54,3826,69.8")
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert str(error.value) == (
        "conv.csv:1: missing column 'arrived_at': these are lengths without arrival times; "
        "the file has: num_prefill_tokens, num_decode_tokens, num_total_tokens, pd_ratio"
    )


@pytest.mark.parametrize(
    ("arrived_at", "problem"),
    [
        ("-0.5", "arrived_at=-0.5 must be >= 0"),
        ("nan", "arrived_at=nan must be a finite number >= 0"),
        ("inf", "arrived_at=inf must be a finite number >= 0"),
        ("1e999", "arrived_at=1e999 must be <= 4611686018 s"),
        ("1e9999", "arrived_at=1e9999 must be a finite number >= 0"),
        ("4611686019", "arrived_at=4611686019 must be <= 4611686018 s"),
        ("0x10", "arrived_at=0x10 must be a finite number >= 0"),
        ("1_0", "arrived_at=1_0 must be a finite number >= 0"),
        ("", "arrived_at is empty, must be a finite number >= 0"),
        ("0." + "1" * 70, "arrived_at=0." + "1" * 35 + "... must be a finite number >= 0"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(trace_file, arrived_at, problem):
    with pytest.raises(TraceError) as error:
        read_trace(trace_file(HEADER, f"{arrived_at},1,1"))
    assert str(error.value) == f"conv.csv:2: {problem}"
