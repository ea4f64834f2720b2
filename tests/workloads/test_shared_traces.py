"""The public traces under ../shared, read completely."""

from __future__ import annotations

import numpy as np
import pytest

from workloads.formats import TraceError, read_trace
from workloads.trace import UNKNOWN


@pytest.fixture
def traces(shared_dir):
    return shared_dir / "data" / "traces"


def test_azure_2023_code(traces):
    trace = read_trace(traces / "azure2023" / "AzureLLMInferenceTrace_code.csv")
    assert (trace.format, len(trace)) == ("azure", 8819)
    assert (trace.prompt_tokens[0], trace.output_tokens[0]) == (4808, 10)
    assert trace.output_tokens[1714] == 1899
    assert trace.prompt_tokens[5129] == 3
    assert trace.arrival_ns[8100] - trace.arrival_ns[8099] == 217_168_952_000
    assert trace.arrival_ns[229 - 1] - trace.arrival_ns[228 - 1] == 6_000
    assert (trace.max_tokens == UNKNOWN).all()
    assert (trace.bad_rows, trace.failed_rows) == ((), ())


def test_azure_2023_conversation(traces):
    trace = read_trace(traces / "azure2023" / "AzureLLMInferenceTrace_conv.rows1-12000.csv")
    assert len(trace) == 12000
    assert trace.prompt_tokens[5442] == 14050
    assert trace.prompt_tokens[78] == 2
    assert trace.arrival_ns[6842] - trace.arrival_ns[6841] == 2_000


def test_azure_code_is_what_vidur_made_of_it(traces):
    azure = read_trace(traces / "azure2023" / "AzureLLMInferenceTrace_code.csv")
    vidur = read_trace(traces / "vidur" / "splitwise_code.csv.gz")
    assert vidur.format == "vidur"
    assert np.array_equal(azure.prompt_tokens, vidur.prompt_tokens)
    assert np.array_equal(azure.output_tokens, vidur.output_tokens)
    assert np.abs(azure.arrival_ns - vidur.arrival_ns).max() <= 1_000


def test_mooncake_conversation(traces):
    trace = read_trace(traces / "mooncake" / "conversation_trace.jsonl.gz")
    assert (trace.format, len(trace)) == ("mooncake", 12031)
    assert len(np.unique(trace.arrival_ns)) == 1180
    assert np.count_nonzero(trace.arrival_ns == 3_447_000 * 10**6) == 28
    assert np.count_nonzero(trace.output_tokens == 1) == 72
    assert (trace.prompt_tokens[11192], len(trace.prefix.ids[11192])) == (126195, 247)
    assert {ids[0] for ids in trace.prefix.ids} == {0}  # every request starts with the same block
    assert trace.prefix.group_tokens == 512


def test_mooncake_ids_are_chained_in_the_file_already(traces):
    """Its ids have one parent each (data/README.md), so chaining must not make more of them."""
    import gzip
    import json

    path = traces / "mooncake" / "conversation_trace.jsonl.gz"
    with gzip.open(path, "rt") as file:
        theirs = {own for line in file for own in json.loads(line)["hash_ids"]}
    ours = {own for ids in read_trace(path).prefix.ids for own in ids}
    assert ours == set(range(len(theirs)))


def test_length_only_vidur_file(traces):
    with pytest.raises(TraceError, match="missing column 'arrived_at': these are lengths without arrival times"):
        read_trace(traces / "vidur" / "arxiv_summarization_llama2.csv.gz")


@pytest.mark.parametrize(
    "name",
    [
        "ragpulse/0_trace.jsonl.gz",
        "kv_cache_tester/claude_code_sessions_shared.jsonl.gz",
        "servegen/language_m-small/chunk-17-trace.csv.gz",
    ],
)
def test_files_of_other_kinds_are_refused_by_content(traces, name):
    with pytest.raises(TraceError, match="the first line must fit a known format"):
        read_trace(traces / name)
