"""What is written is read back, whatever it is (hypothesis)."""

from __future__ import annotations

import gzip
import json
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.formats import TraceError, read_trace
from workloads.prefix import PrefixChain
from workloads.trace import UNKNOWN, PrefixIds, Trace
from workloads.write import csv_lines, jsonl_lines

TIMES_NS = st.integers(0, 2**62 - 10**9)
TOKENS = st.integers(1, 10_000_000)
TEXTS = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=20).filter(str.isprintable)
COLUMNS = ("arrival_ns", "prompt_tokens", "output_tokens", "max_tokens", "priority")
HEADERS = ("arrival_s,prompt_tokens,output_tokens", "TIMESTAMP,ContextTokens,GeneratedTokens")
TIME_COLUMNS = ("queue_timeout_ns", "timeout_ns", "cancel_after_ns")


def read(content: bytes, **options) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        path.write_bytes(content)
        return read_trace(path, **options)


def trace_or_problem(content: bytes, **options) -> Trace | str:
    try:
        return read(content, **options)
    except TraceError as error:
        return str(error)


@st.composite
def traces(draw) -> Trace:
    num = draw(st.integers(1, 6))

    def column(values):
        return np.array(draw(st.lists(values, min_size=num, max_size=num)), dtype=np.int64)

    def maybe(make):
        return make() if draw(st.booleans()) else None

    def times():
        return column(st.one_of(st.just(UNKNOWN), TIMES_NS))

    prompts, chain = column(TOKENS), PrefixChain()
    group_tokens = draw(st.integers(1, 1024))
    ids = [draw(st.lists(st.integers(0, 3), max_size=min(5, -(-int(tokens) // group_tokens)))) for tokens in prompts]
    return Trace(
        name="t",
        format="made",
        arrival_ns=np.sort(column(TIMES_NS)),
        prompt_tokens=prompts,
        output_tokens=column(TOKENS),
        max_tokens=column(st.one_of(st.just(UNKNOWN), TOKENS)),
        request_ids=maybe(lambda: draw(st.lists(TEXTS, min_size=num, max_size=num, unique=True))),
        priority=maybe(lambda: column(st.integers(-(2**31) + 1, 2**31 - 1))),
        clients=maybe(lambda: draw(st.lists(TEXTS, min_size=num, max_size=num))),
        queue_timeout_ns=maybe(times),
        timeout_ns=maybe(times),
        cancel_after_ns=maybe(times),
        prefix=PrefixIds(group_tokens, [chain.chained(own) for own in ids]) if any(ids) else None,
    )


@given(traces(), st.booleans())
@pytest.mark.parametrize("lines", [csv_lines, jsonl_lines])
def test_our_own_formats_lose_nothing(lines, trace, packed):
    content = "".join(lines(trace)).encode()
    back = read(gzip.compress(content) if packed else content)
    for name in COLUMNS:
        assert np.array_equal(getattr(back, name), getattr(trace, name)), name
    for name in TIME_COLUMNS:
        before = getattr(trace, name)
        absent = before is None or (before == UNKNOWN).all()
        assert np.array_equal(getattr(back, name), None if absent else before), name
    assert back.request_ids == trace.request_ids
    assert back.clients == trace.clients
    assert back.prefix == trace.prefix


@pytest.mark.parametrize("lines", [csv_lines, jsonl_lines])
def test_text_that_no_reader_takes_is_not_written(lines):
    one = np.ones(1, dtype=np.int64)
    trace = Trace("t", "made", one, one, one, one, clients=["a\nb"])
    with pytest.raises(ValueError, match=r"a request id or client must be printable text, got 'a\\nb'"):
        list(lines(trace))


@given(st.lists(st.tuples(st.integers(0, 10**15), TOKENS, TOKENS), min_size=1, max_size=8), st.integers(1, 9))
def test_azure_to_the_last_digit(rows, digits):
    """Wall-clock text of any precision comes back as the same differences."""
    unit_ns = 10 ** (9 - digits)
    ticks = sorted(tick // unit_ns * unit_ns for tick, _, _ in rows)
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for at_ns, (_, prompt, output) in zip(ticks, rows, strict=True):
        second = datetime(2023, 11, 16) + timedelta(seconds=at_ns // 10**9)
        lines.append(f"{second}.{at_ns % 10**9:09d}"[: 20 + digits] + f",{prompt},{output}")
    trace = read("\r\n".join(lines).encode())
    assert trace.arrival_ns.tolist() == [tick - ticks[0] for tick in ticks]
    assert trace.prompt_tokens.tolist() == [prompt for _, prompt, _ in rows]
    assert trace.output_tokens.tolist() == [output for _, _, output in rows]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=2, max_size=6))
def test_mooncake_ids_are_equal_exactly_where_beginnings_are(prompts):
    rows = [{"timestamp": 0, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids} for ids in prompts]
    chained = read("\n".join(map(json.dumps, rows)).encode()).prefix.ids
    for own, ours in zip(prompts, chained, strict=True):
        for other, theirs in zip(prompts, chained, strict=True):
            for end in range(1, min(len(own), len(other)) + 1):
                assert (ours[end - 1] == theirs[end - 1]) == (own[:end] == other[:end])
    assert sorted({i for ids in chained for i in ids}) == list(range(len({i for ids in chained for i in ids})))


@given(st.binary(max_size=200), st.sampled_from([None, "azure", "mooncake", "generic-csv", "generic-jsonl"]))
def test_any_bytes_give_a_trace_or_a_trace_error(content, format_name):
    outcome = trace_or_problem(content, format=format_name)
    assert outcome.isprintable() if isinstance(outcome, str) else len(outcome) > 0


@given(
    st.text(max_size=60),
    st.sampled_from(["arrival_s,prompt_tokens,output_tokens", "TIMESTAMP,ContextTokens,GeneratedTokens"]),
)
def test_any_text_in_a_row_gives_a_trace_or_a_trace_error(text, header):
    outcome = trace_or_problem(f"{header}\n{text}\n".encode("utf-8", "surrogatepass"), on_bad_row="skip")
    assert outcome.isprintable() if isinstance(outcome, str) else len(outcome) > 0
