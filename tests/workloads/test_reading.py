"""What holds for every dialect: detection by content, gzip, bounds, bad rows, order."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import threading

import pytest

from workloads.formats import ReadLimits, TraceError, format_names, read_trace
from workloads.reading.registry import dialect, register

HEADER = "arrival_s,prompt_tokens,output_tokens"


def error_of(path, **options):
    with pytest.raises(TraceError) as error:
        read_trace(path, **options)
    return str(error.value)


def test_every_module_under_formats_has_registered_itself():
    assert format_names() == ("azure", "burstgpt", "generic-csv", "generic-jsonl", "mooncake", "vidur")


def test_a_format_name_is_registered_once():
    with pytest.raises(ValueError, match="trace format 'azure' is already registered"):
        register(dialect("azure"))


def test_an_unknown_format_lists_what_exists(trace_file):
    message = "format must be one of azure, burstgpt, .*, vidur, got 'azur'; did you mean 'azure'?"
    with pytest.raises(ValueError, match=message):
        read_trace(trace_file(HEADER), format="azur")


@pytest.mark.parametrize(
    ("first_lines", "expected"),
    [
        (("TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03,1,1"), "azure"),
        (("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", "5,m,1,1,2,x"), "burstgpt"),
        (("arrived_at,num_prefill_tokens,num_decode_tokens", "0,1,1"), "vidur"),
        (('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0]}',), "mooncake"),
        ((HEADER, "0,1,1"), "generic-csv"),
        (('{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1}',), "generic-jsonl"),
    ],
)
@pytest.mark.parametrize("name", ["trace.csv", "trace.jsonl", "trace.csv.gz", "trace"])
@pytest.mark.parametrize("packed", [False, True])
def test_content_tells_the_format_not_the_name(trace_file, first_lines, expected, name, packed):
    content = "".join(f"{line}\n" for line in first_lines).encode()
    trace = read_trace(trace_file(gzip.compress(content) if packed else content, name=name))
    assert (trace.format, len(trace)) == (expected, 1)


def test_a_first_line_that_nobody_knows(trace_file):
    assert error_of(trace_file("a,b,c", "1,2,3")) == (
        "conv.csv:1: the first line must fit a known format (azure, burstgpt, generic-csv, generic-jsonl, mooncake, "
        "vidur) or have its columns named; it is 'a,b,c'"
    )


def test_a_first_line_that_several_know(trace_file):
    path = trace_file("TIMESTAMP,ContextTokens,GeneratedTokens,client", "2023-11-16 18:17:03,1,1,x")
    assert error_of(path) == "conv.csv:1: fits several formats, say which: azure, generic-csv"
    assert len(read_trace(path, format="azure")) == 1


@pytest.mark.parametrize("content", [b"", b"\n", b"\r\n \n", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_an_empty_file(trace_file, content):
    assert error_of(trace_file(content)) == "conv.csv: the file is empty"


def test_a_header_alone(trace_file):
    assert error_of(trace_file(HEADER)) == "conv.csv: has a header but no rows"


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "none.csv")


def test_blank_lines_count_as_lines_and_are_no_rows(trace_file):
    path = trace_file(f"{HEADER}\r\n\r\n0,1,1\r\n  \r\n0,-1,1\r\n\r\n".encode())
    assert error_of(path) == "conv.csv:5: prompt_tokens=-1 must be >= 1"
    assert len(read_trace(path, on_bad_row="skip")) == 1


def test_no_newline_at_the_end(trace_file):
    assert read_trace(trace_file(f"{HEADER}\n0,1,12".encode())).output_tokens.tolist() == [12]


def test_the_hash_is_of_the_stored_bytes_and_gzip_members_may_follow_each_other(trace_file):
    stored = gzip.compress(f"{HEADER}\n0,1,1\n".encode()) + gzip.compress(b"1,2,2\n")
    trace = read_trace(trace_file(stored))
    assert trace.prompt_tokens.tolist() == [1, 2]
    assert trace.sha256 == hashlib.sha256(stored).hexdigest()


def test_a_pipe_is_read_once_and_hashed(tmp_path):
    content = f"{HEADER}\n0,1,1\n".encode()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    trace = read_trace(pipe)
    writer.join()
    assert trace.sha256 == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("cut", [12, 20, -9, -4])
def test_damaged_gzip(trace_file, cut):
    stored = gzip.compress(f"{HEADER}\n0,1,1\n".encode())
    assert error_of(trace_file(stored[:cut])).startswith("conv.csv: the gzip data is damaged (")


def test_gzip_with_wrong_bytes_inside(trace_file):
    stored = bytearray(gzip.compress(f"{HEADER}\n0,1,1\n".encode()))
    stored[-6] ^= 0xFF  # of the checksum
    assert error_of(trace_file(bytes(stored))).startswith("conv.csv: the gzip data is damaged (CRC check failed")


def test_text_must_be_utf8(trace_file):
    path = trace_file(f"{HEADER}\n0,1,1\n0,\xff,1\n".encode("latin-1"))
    assert error_of(path) == "conv.csv:3: byte ff (hex) must be UTF-8 text"
    assert error_of(trace_file(HEADER.encode("utf-16"))) == "conv.csv:1: byte ff (hex) must be UTF-8 text"


def test_a_file_name_is_shown_safely(trace_file):
    assert error_of(trace_file(HEADER, name="a\x1b[2Jb.csv")) == r"'a\x1b[2Jb.csv': has a header but no rows"


class TestLimits:
    def test_bytes_of_a_line(self, trace_file):
        path = trace_file(HEADER, "0,1,1", "0,1," + "1" * 100)
        limits = ReadLimits(line_bytes=50)
        assert error_of(path, limits=limits) == "conv.csv:3: the line must have at most 50 bytes (line_bytes)"
        assert error_of(path, limits=limits, on_bad_row="skip").endswith("(line_bytes)")

    def test_a_line_of_exactly_the_limit_is_read(self, trace_file):
        assert len(read_trace(trace_file(HEADER, "0,1,1"), limits=ReadLimits(line_bytes=len(HEADER) + 1))) == 1

    def test_decompressed_bytes(self, trace_file):
        bomb = gzip.compress(HEADER.encode() + b"\n" * 1_000_000)
        assert error_of(trace_file(bomb), limits=ReadLimits(decompressed_bytes=1000)) == (
            "conv.csv:964: the file must have at most 1000 bytes (decompressed_bytes)"
        )

    def test_a_bomb_without_lines(self, trace_file):
        bomb = gzip.compress(b"0" * 10_000_000)
        assert error_of(trace_file(bomb)) == "conv.csv:1: the line must have at most 1048576 bytes (line_bytes)"

    @pytest.mark.parametrize("third", ["0,1,1", "bad"])
    def test_rows(self, trace_file, third):
        path = trace_file(HEADER, "0,1,1", "0,1,1", third)
        assert error_of(path, limits=ReadLimits(rows=2), on_bad_row="skip") == (
            "conv.csv:4: at most 2 rows may be read (rows)"
        )

    def test_rows_left_out(self, trace_file):
        path = trace_file(HEADER, "0,1,1", "0,1,0", "0,1,0")
        assert len(read_trace(path, limits=ReadLimits(left_out_rows=2)).failed_rows) == 2
        assert error_of(path, limits=ReadLimits(left_out_rows=1)) == (
            "conv.csv:4: at most 1 rows may be left out (left_out_rows)"
        )

    def test_tokens(self, trace_file):
        path = trace_file(HEADER, "0,1,101")
        assert error_of(path, limits=ReadLimits(tokens=100)) == "conv.csv:2: output_tokens=101 must be <= 100"

    def test_json_depth(self, trace_file):
        path = trace_file('{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "x": [[1]]}')
        assert len(read_trace(path, limits=ReadLimits(json_depth=3))) == 1
        assert error_of(path, limits=ReadLimits(json_depth=2)) == (
            "conv.csv:1: JSON must be nested at most 2 deep (json_depth)"
        )


class TestBadRows:
    def test_skipped_rows_are_kept_with_their_reason(self, trace_file):
        path = trace_file(HEADER, "0,x,1", "1,2,3", "2,2")
        trace = read_trace(path, on_bad_row="skip")
        assert trace.prompt_tokens.tolist() == [2]
        assert [(row.where, row.problem) for row in trace.bad_rows] == [
            ("conv.csv:2", "prompt_tokens=x must be an integer >= 1"),
            ("conv.csv:4", "has 2 fields, must have 3, as the header"),
        ]

    def test_the_first_of_two_equal_ids_stays(self, trace_file):
        path = trace_file(HEADER + ",request_id", "0,1,1,a", "0,2,2,a", "0,3,3,b")
        trace = read_trace(path, on_bad_row="skip")
        assert (list(trace.request_ids), trace.prompt_tokens.tolist()) == (["a", "b"], [1, 3])
        assert [row.problem for row in trace.bad_rows] == ["request id a must be unique, is also in line 2"]

    def test_nothing_left_is_an_error(self, trace_file):
        path = trace_file(HEADER, "0,x,1", "0,1,0")
        assert error_of(path, on_bad_row="skip") == (
            "conv.csv: none of its 2 rows can be used; first conv.csv:2: prompt_tokens=x must be an integer >= 1"
        )

    def test_other_words_are_refused(self, trace_file):
        with pytest.raises(ValueError, match=re.escape("on_bad_row must be 'error' or 'skip', got 'ignore'")):
            read_trace(trace_file(HEADER), on_bad_row="ignore")


class TestOrder:
    def test_out_of_order_is_an_error_that_skip_does_not_hide(self, trace_file):
        path = trace_file(HEADER, "0,1,1", "2,1,1", "0.5,1,1")
        message = "conv.csv:4: arrival_s goes back by 1.5 s, must be in order of arrival (or sorted)"
        assert error_of(path) == message
        assert error_of(path, on_bad_row="skip") == message

    def test_sorting_is_stable_and_takes_every_column_along(self, trace_file):
        path = trace_file(
            HEADER + ",request_id,priority,prefix_group_tokens,prefix_ids",
            "2,1,10,a,1,16,5",
            "1,2,20,b,2,16,6",
            "2,3,30,c,3,,",
            "1,4,40,d,4,16,5",
        )
        trace = read_trace(path, sort=True)
        assert list(trace.request_ids) == ["b", "d", "a", "c"]
        assert trace.arrival_ns.tolist() == [10**9, 10**9, 2 * 10**9, 2 * 10**9]
        assert trace.prompt_tokens.tolist() == [2, 4, 1, 3]
        assert trace.output_tokens.tolist() == [20, 40, 10, 30]
        assert trace.priority.tolist() == [2, 4, 1, 3]
        assert list(trace.prefix.ids) == [(1,), (0,), (0,), ()]
        assert trace.notes == ("sorted: 2 rows were out of order",)

    def test_many_equal_times_keep_their_order(self, trace_file):
        rows = [f"{at},{prompt},1" for prompt, at in enumerate([1, 0] * 50, start=1)]
        trace = read_trace(trace_file(HEADER, *rows), sort=True)
        assert trace.prompt_tokens.tolist() == [*range(2, 101, 2), *range(1, 101, 2)]

    def test_wall_clock_times_start_at_the_earliest(self, trace_file):
        path = trace_file(
            "TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03,1,1", "2023-11-16 18:17:01,2,2"
        )
        assert read_trace(path, sort=True).arrival_ns.tolist() == [0, 2 * 10**9]
