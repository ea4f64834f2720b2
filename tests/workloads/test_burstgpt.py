"""The BurstGPT dialect: case E3."""

from __future__ import annotations

import pytest

from workloads.formats import TraceError, read_trace


def test_case_e3_failed_and_malformed_rows_are_told_apart(case_files):
    trace = read_trace(case_files / "E3_burst_failed_and_extra.csv", on_bad_row="skip")
    assert trace.format == "burstgpt"
    assert trace.arrival_ns.tolist() == [0, 40 * 10**9, 113 * 10**9]
    assert trace.prompt_tokens.tolist() == [450, 1100, 1300]
    assert trace.output_tokens.tolist() == [20, 210, 250]
    name = "E3_burst_failed_and_extra.csv"
    assert [(row.where, row.problem) for row in trace.failed_rows] == [
        (f"{name}:4", "Response tokens=0: the request failed when the trace was taken")
    ]
    assert [(row.where, row.problem) for row in trace.bad_rows] == [
        (f"{name}:6", "Timestamp is empty, must be a finite number >= 0"),
        (f"{name}:7", "Request tokens=nan must be an integer >= 1"),
    ]
    assert trace.notes == ("columns not read: Model, Total tokens, Log Type",)


def test_case_e3_a_malformed_row_is_an_error_by_default(case_files):
    with pytest.raises(TraceError) as error:
        read_trace(case_files / "E3_burst_failed_and_extra.csv")
    assert str(error.value) == "E3_burst_failed_and_extra.csv:6: Timestamp is empty, must be a finite number >= 0"


@pytest.mark.parametrize("on_bad_row", ["error", "skip"])
def test_case_e3_a_missing_column_fails_fast(case_files, on_bad_row):
    with pytest.raises(TraceError) as error:
        read_trace(case_files / "E3_burst_missing_column.csv", on_bad_row=on_bad_row)
    assert str(error.value) == (
        "E3_burst_missing_column.csv:1: missing column 'Response tokens'; "
        "the file has: Timestamp, Model, Request tokens, Total tokens, Log Type"
    )


def test_version_3_with_sessions(trace_file):
    path = trace_file(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
        "0.25,,1.5,ChatGPT,10,20,30,API log",
        "1.5,7,1.5,ChatGPT,11,21,32,Conversation log",
    )
    assert read_trace(path).arrival_ns.tolist() == [0, 1_250_000_000]
