"""The Mooncake dialect."""

from __future__ import annotations

import json

import pytest

from workloads.formats import TraceError, read_trace


def row(timestamp=0, input_length=600, output_length=5, hash_ids=(0, 1), **more):
    return json.dumps(
        {
            "timestamp": timestamp,
            "input_length": input_length,
            "output_length": output_length,
            "hash_ids": list(hash_ids) if isinstance(hash_ids, tuple) else hash_ids,
            **more,
        }
    )


def test_milliseconds_lengths_and_shared_prefixes(trace_file):
    path = trace_file(row(3000), row(3000, 1024, 7, (0, 9)), row(6001, 1, 1, (0,)))
    trace = read_trace(path)
    assert trace.format == "mooncake"
    assert trace.arrival_ns.tolist() == [3_000_000_000, 3_000_000_000, 6_001_000_000]  # offsets stay
    assert trace.prompt_tokens.tolist() == [600, 1024, 1]
    assert trace.prefix.group_tokens == 512
    assert list(trace.prefix.ids) == [(0, 1), (0, 2), (0,)]


def test_an_id_after_another_parent_is_another_prefix(trace_file):
    path = trace_file(row(hash_ids=(5, 7)), row(hash_ids=(6, 7)), row(hash_ids=(5, 7)))
    assert list(read_trace(path).prefix.ids) == [(0, 1), (2, 3), (0, 1)]


def test_ids_are_unsigned_64_bit(trace_file):
    assert list(read_trace(trace_file(row(hash_ids=(2**64 - 1, 0)))).prefix.ids) == [(0, 1)]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (row(hash_ids=(1,)), "hash_ids has 1 ids, must have 2 (one per 512 of 600 tokens)"),
        (row(hash_ids=(1, 2, 3)), "hash_ids has 3 ids, must have 2 (one per 512 of 600 tokens)"),
        (row(hash_ids={"a": 1}), "hash_ids=\"{'a': 1}\" must be a list of integers"),
        (row(hash_ids=(1, -2)), "hash_ids=-2 must be >= 0"),
        (row(hash_ids=(1, 2**64)), "hash_ids=18446744073709551616 must be <= 18446744073709551615"),
        (row(hash_ids=(1, True)), "hash_ids=True must be an integer >= 0"),
        (row(timestamp=-1), "timestamp=-1 must be >= 0"),
        (row(timestamp=1.5), "timestamp=1.5 must be an integer >= 0"),
        (row(timestamp=None), "timestamp is missing, must be an integer >= 0"),
        (row(input_length=0), "input_length=0 must be >= 1"),
        (row(input_length=True), "input_length=True must be an integer >= 1"),
        ('{"timestamp": 0, "input_length": 5}', "output_length is missing, must be an integer >= 0"),
        ("[1]", "must be a JSON object, is a list"),
        ('{"a": NaN}', "NaN must be a finite number"),
        ('{"a": -Infinity}', "-Infinity must be a finite number"),
        ('{"a": 1, "a": 2}', "key 'a' must not appear twice"),
        ('{"a": 1', "must be valid JSON: Expecting ',' delimiter at character 8"),
        ('{"a": ' + "9" * 5000 + "}", "must be valid JSON: a number has too many digits"),
        ('{"a": 1e' + "9" * 30 + "}", "must be valid JSON: a number has too many digits"),
        ('{"a": ' + "[" * 16 + "]" * 16 + "}", "JSON must be nested at most 16 deep (json_depth)"),
        ('{"a": ' + "[" * 500_000, "JSON must be nested at most 16 deep (json_depth)"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(trace_file, line, problem):
    path = trace_file(row(), line, name="moon.jsonl")
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert str(error.value) == f"moon.jsonl:2: {problem}"


def test_brackets_inside_strings_are_not_depth(trace_file):
    path = trace_file(row(note="[" * 100 + '\\"{'), row(note='"' + "[" * 100))
    assert len(read_trace(path, format="mooncake")) == 2


def test_depth_up_to_the_limit_is_fine(trace_file):
    nested = json.loads("[" * 15 + "]" * 15)
    assert len(read_trace(trace_file(row(note=nested)), format="mooncake")) == 1


def test_same_words_with_other_keys_are_not_taken_for_mooncake(trace_file):
    """RAGPulse and the Qwen traces say `timestamp` and `hash_ids` too, in seconds and by other blocks."""
    with pytest.raises(TraceError) as error:
        read_trace(trace_file(row(session_id="s"), name="rag.jsonl"))
    assert str(error.value) == (
        "rag.jsonl:1: the first line must fit a known format (azure, burstgpt, generic-csv, generic-jsonl, mooncake, "
        "vidur) or have its columns named; "
        "it has the keys timestamp, input_length, output_length, hash_ids, session_id"
    )


def test_said_to_be_mooncake_it_may_have_more_keys(trace_file):
    trace = read_trace(trace_file(row(session_id="s")), format="mooncake")
    assert trace.notes == ("columns not read: session_id",)


def test_said_to_be_mooncake_it_must_have_its_keys(trace_file):
    with pytest.raises(TraceError) as error:
        read_trace(trace_file('{"timestamp": 0, "input_length": 1}', name="m.jsonl"), format="mooncake")
    assert str(error.value) == (
        "m.jsonl:1: missing columns 'output_length', 'hash_ids'; the file has: timestamp, input_length"
    )
