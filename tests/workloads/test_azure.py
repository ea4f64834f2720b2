"""The Azure dialect, case E1 among others."""

from __future__ import annotations

import hashlib
import re

import pytest

from workloads.formats import TraceError, read_trace
from workloads.formats.azure import WallClock
from workloads.reading.errors import RowError
from workloads.trace import UNKNOWN

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


@pytest.mark.parametrize(
    "name", ["E1_azure_bom_crlf_7digits.csv", "E1_azure_bom_crlf_7digits.csv.gz", "E1_gz_without_gz_suffix.csv"]
)
def test_case_e1_bom_crlf_seven_digits_gzip(case_files, name):
    trace = read_trace(case_files / name)
    assert trace.format == "azure"
    assert trace.arrival_ns.tolist() == [0, 1_000_000, 8_000_000, 10_000_000]
    assert trace.prompt_tokens.tolist() == [310, 420, 760, 85]
    assert trace.output_tokens.tolist() == [40, 95, 60, 12]
    assert trace.max_tokens.tolist() == [UNKNOWN] * 4
    assert trace.name == name
    assert trace.sha256 == hashlib.sha256((case_files / name).read_bytes()).hexdigest()
    assert (trace.bad_rows, trace.failed_rows, trace.notes) == ((), (), ())
    assert trace.prefix is None


def test_2024_has_six_digits_an_offset_and_whole_seconds(trace_file):
    path = trace_file(
        HEADER,
        "2024-05-10 00:00:00.009930+00:00,2162,5",
        "2024-05-10 00:00:01+00:00,3,4",
        "2024-05-10 02:00:02.5+02:00,5,6",
        "2024-05-09 22:30:03-01:30,7,8",
    )
    assert read_trace(path).arrival_ns.tolist() == [0, 990_070_000, 2_490_070_000, 2_990_070_000]


def test_every_digit_counts(trace_file):
    path = trace_file(HEADER, "2023-11-16 18:17:03.999999999,1,1", "2023-11-16 18:17:04.0000001,1,1")
    assert read_trace(path).arrival_ns.tolist() == [0, 101]


def test_wall_clock_crosses_midnight_and_a_leap_day():
    clock = WallClock()
    before = clock.ns("2024-02-29 23:59:59.9999999")
    assert clock.ns("2024-03-01 00:00:00.0000000") - before == 100
    assert clock.ns("1970-01-01 00:00:01") == 10**9


def test_columns_may_stand_in_any_order_beside_others(trace_file):
    path = trace_file("GeneratedTokens, TIMESTAMP ,Model,ContextTokens", "7,2023-11-16 18:17:03,m,9")
    trace = read_trace(path)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([9], [7])
    assert trace.notes == ("columns not read: Model",)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("2023-11-16 18:17:04,-3,5", "ContextTokens=-3 must be >= 1"),
        ("2023-11-16 18:17:04,0,5", "ContextTokens=0 must be >= 1"),
        ("2023-11-16 18:17:04,10000001,5", "ContextTokens=10000001 must be <= 10000000"),
        ("2023-11-16 18:17:04,nan,5", "ContextTokens=nan must be an integer >= 1"),
        ("2023-11-16 18:17:04,inf,5", "ContextTokens=inf must be an integer >= 1"),
        ("2023-11-16 18:17:04,1_0,5", "ContextTokens=1_0 must be an integer >= 1"),
        ("2023-11-16 18:17:04,1.5,5", "ContextTokens=1.5 must be an integer >= 1"),
        ("2023-11-16 18:17:04,٣,5", "ContextTokens='٣' must be an integer >= 1"),
        ("2023-11-16 18:17:04,,5", "ContextTokens is empty, must be an integer >= 1"),
        (f"2023-11-16 18:17:04,{'9' * 25},5", f"ContextTokens={'9' * 25} must have at most 20 digits, has 25"),
        ("2023-11-16 18:17:04,5,-1", "GeneratedTokens=-1 must be >= 0"),
        ("2023-11-16 18:17:04,\x1b[31mred,5", r"ContextTokens='\x1b[31mred' must be an integer >= 1"),
        (f"2023-11-16 18:17:04,{'x' * 50},5", f"ContextTokens={'x' * 37}... must be an integer >= 1"),
        ("2023-11-16,5,5", "TIMESTAMP=2023-11-16 must be a time like 2023-11-16 18:17:03.9799600"),
        (",5,5", "TIMESTAMP is empty, must be a time like 2023-11-16 18:17:03.9799600"),
        ("2023-02-30 18:17:04,5,5", "TIMESTAMP='2023-02-30 18:17:04' must be a date and time that exist"),
        ("2300-01-01 00:00:00,5,5", "TIMESTAMP='2300-01-01 00:00:00' must be in the years 1970 to 2115"),
        ("2023-11-16 18:17:04Z,5,5", "TIMESTAMP='2023-11-16 18:17:04Z' must have no UTC offset, as the rows before"),
        ("2023-11-16 18:17:04,5", "has 2 fields, must have 3, as the header"),
        ('2023-11-16 18:17:04,"5,5', "must be one line of CSV: unexpected end of data"),
        (
            "2023-11-16 18:17:02.5,5,5",
            "TIMESTAMP goes back by 0.5 s, must be in order of arrival (or sorted)",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(trace_file, row, problem):
    path = trace_file(HEADER, "2023-11-16 18:17:03,1,1", row)
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert str(error.value) == f"conv.csv:3: {problem}"


def test_a_time_without_offset_after_times_with_one():
    clock = WallClock()
    clock.ns("2024-05-10 00:00:00+00:00")
    with pytest.raises(RowError, match=re.escape("must have a UTC offset, as the rows before")):
        clock.ns("2024-05-10 00:00:01")


def test_a_missing_column_is_named_beside_those_that_exist(trace_file):
    with pytest.raises(TraceError) as error:
        read_trace(trace_file("TIMESTAMP,ContextTokens", "2023-11-16 18:17:03,1"))
    assert str(error.value) == "conv.csv:1: missing column 'GeneratedTokens'; the file has: TIMESTAMP, ContextTokens"


def test_zero_output_is_a_failed_request_not_an_error(trace_file):
    trace = read_trace(trace_file(HEADER, "2023-11-16 18:17:03,9,0", "2023-11-16 18:17:05,8,1"))
    assert trace.prompt_tokens.tolist() == [8]
    assert trace.arrival_ns.tolist() == [0]  # the first request that is replayed
    assert [(row.where, row.problem) for row in trace.failed_rows] == [
        ("conv.csv:2", "GeneratedTokens=0: the request failed when the trace was taken")
    ]
    assert trace.bad_rows == ()
