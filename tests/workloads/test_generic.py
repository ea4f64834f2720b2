"""The generic dialects: names, units, and what is refused."""

from __future__ import annotations

import json

import pytest

from workloads.formats import GenericColumns, TraceError, read_trace
from workloads.trace import UNKNOWN

FULL = (
    "arrival_s,prompt_tokens,output_tokens,max_tokens,request_id,priority,client,"
    "queue_timeout_s,timeout_s,cancel_after_s,prefix_group_tokens,prefix_ids"
)


def error_of(path, **options):
    with pytest.raises(TraceError) as error:
        read_trace(path, **options)
    return str(error.value)


def test_our_own_columns_need_no_declaration(trace_file):
    path = trace_file(
        FULL,
        '0.5,32,10,64,a,-1,"Ann, B.",1.5,60,2,16,7 8',
        "1.000000001,5,6,,b,,,,,,,",
    )
    trace = read_trace(path)
    assert trace.format == "generic-csv"
    assert trace.arrival_ns.tolist() == [500_000_000, 1_000_000_001]
    assert trace.prompt_tokens.tolist() == [32, 5]
    assert trace.output_tokens.tolist() == [10, 6]
    assert trace.max_tokens.tolist() == [64, UNKNOWN]
    assert list(trace.request_ids) == ["a", "b"]
    assert trace.priority.tolist() == [-1, 0]
    assert list(trace.clients) == ["Ann, B.", ""]
    assert trace.queue_timeout_ns.tolist() == [1_500_000_000, UNKNOWN]
    assert trace.timeout_ns.tolist() == [60 * 10**9, UNKNOWN]
    assert trace.cancel_after_ns.tolist() == [2 * 10**9, UNKNOWN]
    assert (trace.prefix.group_tokens, list(trace.prefix.ids)) == (16, [(0, 1), ()])
    assert trace.notes == ()


def test_absent_columns_are_absent_in_the_trace(trace_file):
    trace = read_trace(trace_file("arrival_s,prompt_tokens,output_tokens", "0,1,1"))
    absent = (trace.request_ids, trace.priority, trace.clients, trace.queue_timeout_ns, trace.timeout_ns)
    assert absent == (None,) * 5
    assert (trace.cancel_after_ns, trace.prefix) == (None, None)


def test_jsonl_rows_may_lack_keys_and_numbers_are_exact(trace_file):
    path = trace_file(
        '{"arrival_s": 0.1, "prompt_tokens": 16, "output_tokens": 3}',
        '{"prompt_tokens": 40.0, "output_tokens": "4", "arrival_s": 12345678.123456789, "client": 17, "priority": null,'
        ' "timeout_s": 2, "prefix_ids": [3, 3, 1], "prefix_group_tokens": 16}',
    )
    trace = read_trace(path)
    assert trace.format == "generic-jsonl"
    assert trace.arrival_ns.tolist() == [100_000_000, 12_345_678_123_456_789]
    assert trace.prompt_tokens.tolist() == [16, 40]
    assert trace.output_tokens.tolist() == [3, 4]
    assert list(trace.clients) == ["", "17"]
    assert trace.priority is None
    assert trace.timeout_ns.tolist() == [UNKNOWN, 2 * 10**9]
    assert (trace.prefix.group_tokens, list(trace.prefix.ids)) == (16, [(), (0, 1, 2)])


@pytest.mark.parametrize(("unit", "ns"), [("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1)])
def test_time_units_are_declared_and_end_our_names(trace_file, unit, ns):
    path = trace_file(f"arrival_{unit},prompt_tokens,output_tokens,timeout_{unit}", "3,1,1,7")
    trace = read_trace(path, columns=GenericColumns(time_unit=unit))
    assert (trace.arrival_ns.tolist(), trace.timeout_ns.tolist()) == ([3 * ns], [7 * ns])


def test_half_a_nanosecond_rounds_to_even(trace_file):
    path = trace_file("arrival_ns,prompt_tokens,output_tokens", "0.5,1,1", "1.5,1,1", "2.5,1,1", "2.51,1,1")
    assert read_trace(path, columns=GenericColumns(time_unit="ns")).arrival_ns.tolist() == [0, 2, 2, 3]


def test_declared_names_and_wall_clock_seconds(trace_file):
    path = trace_file("ts,in,out,who,Model", "1700000000.25,5,6,x,m", "1700000001,7,8,y,m")
    columns = GenericColumns(
        arrival="ts", prompt_tokens="in", output_tokens="out", client="who", relative_to_first=True
    )
    trace = read_trace(path, columns=columns)
    assert trace.arrival_ns.tolist() == [0, 750_000_000]
    assert list(trace.clients) == ["x", "y"]
    assert trace.notes == ("columns not read: Model",)


def test_a_declared_column_must_exist(trace_file):
    path = trace_file("ts,in_tokens,out", "0,5,6")
    columns = GenericColumns(arrival="ts", prompt_tokens="in_token", output_tokens="out")
    assert error_of(path, columns=columns) == (
        "conv.csv:1: column 'in_token', declared as prompt_tokens, must exist; the file has: ts, in_tokens, out; "
        "did you mean 'in_tokens'?"
    )


def test_a_declared_optional_column_must_exist_in_csv(trace_file):
    path = trace_file("arrival_s,prompt_tokens,output_tokens", "0,5,6")
    assert error_of(path, columns=GenericColumns(client="tenant")) == (
        "conv.csv:1: column 'tenant', declared as client, must exist; "
        "the file has: arrival_s, prompt_tokens, output_tokens"
    )


def test_a_declared_key_must_exist_in_some_row_of_jsonl(trace_file):
    first = '{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 6}'
    later = '{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 6, "tenant": "t"}'
    columns = GenericColumns(client="tenant")
    assert list(read_trace(trace_file(first, later), columns=columns).clients) == ["", "t"]
    assert error_of(trace_file(first, first), columns=columns) == (
        "conv.csv: column 'tenant', declared as client, must exist; "
        "the file has: arrival_s, prompt_tokens, output_tokens"
    )


def test_missing_columns_are_listed_beside_those_that_exist(trace_file):
    assert error_of(trace_file("prompt_tokens,when", "5,0")) == (
        "conv.csv:1: missing columns 'arrival_s', 'output_tokens'; the file has: prompt_tokens, when"
    )


def test_a_slip_in_a_required_name_is_suggested(trace_file):
    assert error_of(trace_file("arrival_s,promt_tokens,output_tokens", "0,1,1")) == (
        "conv.csv:1: missing column 'prompt_tokens'; the file has: arrival_s, promt_tokens, output_tokens; "
        "did you mean 'promt_tokens'?"
    )


@pytest.mark.parametrize(
    ("slip", "ours"),
    [
        ("max_token", "max_tokens"),
        ("Max Tokens", "max_tokens"),
        ("timeout", "timeout_s"),
        ("timeout_ms", "timeout_s"),
        ("prioritiy", "priority"),
        ("requestid", "request_id"),
    ],
)
def test_a_slip_in_an_optional_name_is_an_error(trace_file, slip, ours):
    problem = (
        f"column {slip!r} is not read; did you mean {ours!r}? "
        "(GenericColumns names columns, and leaves alone those in its `ignore`)"
    )
    csv = trace_file(f"arrival_s,prompt_tokens,output_tokens,{slip}", "0,1,1,1")
    assert error_of(csv) == f"conv.csv:1: {problem}"
    trace = read_trace(csv, columns=GenericColumns(ignore=(slip,)))
    assert trace.notes == (f"columns not read: {slip}",)
    record = {"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1}
    jsonl = trace_file(json.dumps(record), json.dumps({**record, slip: 1}), name="g.jsonl")
    assert error_of(jsonl) == f"g.jsonl:2: {problem}"


def test_other_extra_columns_are_noted(trace_file):
    path = trace_file("arrival_s,prompt_tokens,output_tokens,total_tokens,e2e_s", "0,1,1,2,3")
    assert read_trace(path).notes == ("columns not read: total_tokens, e2e_s",)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("0,1,1,0,a,,,,,,,", "max_tokens=0 must be >= 1"),
        ("0,1,1,,a,2147483648,,,,,,", "priority=2147483648 must be <= 2147483647"),
        ("0,1,1,,a,,,-1,,,,", "queue_timeout_s=-1 must be >= 0"),
        ("0,1,1,,a,,,,nan,,,", "timeout_s=nan must be a finite number >= 0"),
        ("0,1,1,,a,,,,,1e10,,", "cancel_after_s=1e10 must be <= 4611686018 s"),
        ("0,1,1,,,,,,,,,", "request_id is empty, must be given in every row or in none"),
        ("0,1,1,,r1,,,,,,,", "request id r1 must be unique, is also in line 2"),
        ("0,1,1,,a,,\x07,,,,,", r"client='\x07' must be printable text of at most 200 characters"),
        ("0,1,1,,a,,,,,,,3", "prefix_group_tokens is empty, must be given beside prefix_ids"),
        ("0,16,1,,a,,,,,,16,3 4", "prefix_ids has 2 ids, must have at most 1 (one per 16 of 16 tokens)"),
        ("0,16,1,,a,,,,,,32,3", "prefix_group_tokens=32 must be the same in every row, is 16 before"),
        ("0,16,1,,a,,,,,,16,x", "prefix_ids=x must be an integer >= 0"),
        ("0,1,1,,a,,,,,,16,-1", "prefix_ids=-1 must be >= 0"),
        ("0,1,1,,a,,,,,,16,18446744073709551616", "prefix_ids=18446744073709551616 must be <= 18446744073709551615"),
        ("0,1,1", "has 3 fields, must have 12, as the header"),
        ("0.5,1,1,,a,,,,,,,", "arrival_s goes back by 0.5 s, must be in order of arrival (or sorted)"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(trace_file, row, problem):
    assert error_of(trace_file(FULL, "1,17,1,,r1,,,,,,16,1", row)) == f"conv.csv:3: {problem}"


def test_group_tokens_may_be_declared(trace_file):
    path = trace_file("arrival_s,prompt_tokens,output_tokens,prefix_ids", "0,1,1,5")
    assert read_trace(path, columns=GenericColumns(group_tokens=64)).prefix.group_tokens == 64


def test_an_empty_list_shares_nothing(trace_file):
    path = trace_file('{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "prefix_ids": []}')
    assert read_trace(path).prefix is None


def test_a_column_twice_in_the_header(trace_file):
    path = trace_file("arrival_s,prompt_tokens,output_tokens,arrival_s", "0,1,1,1")
    assert error_of(path) == "conv.csv:1: column 'arrival_s' must not appear twice"


def test_too_many_columns(trace_file):
    header = ",".join(f"c{i}" for i in range(1001))
    assert error_of(trace_file(header)) == "conv.csv:1: has 1001 columns, must have at most 1000"
    keys = json.dumps({f"c{i}": i for i in range(1001)})
    assert error_of(trace_file(keys)) == "conv.csv:1: has 1001 columns, must have at most 1000"


def test_too_many_different_keys(trace_file):
    record = {"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1}
    rows = [json.dumps({**record, **{f"{part}x{i}": i for i in range(400)}}) for part in "abc"]
    assert error_of(trace_file(*rows)) == "conv.csv:3: the file must have at most 1000 different keys"


def test_columns_are_for_generic_formats_only(trace_file):
    path = trace_file("TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03,1,1")
    with pytest.raises(ValueError, match="columns can be named for generic formats only, not for 'azure'"):
        read_trace(path, format="azure", columns=GenericColumns())
    columns = GenericColumns(arrival="ContextTokens", prompt_tokens="GeneratedTokens", output_tokens="ContextTokens2")
    assert "declared as output_tokens, must exist" in error_of(path, columns=columns)
