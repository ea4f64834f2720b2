"""The samples file: what is written is read back, and what is wrong is named with file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.models import timed_model
from calibrate.records import DeviceInfo, Measurement, SamplesError, SamplesWriter, TaskSpec, read_samples
from costmodel.shape import StepShape
from tests.calibrate.small_run import header

STEP = TaskSpec("step", prefill=((4, 8),), decode=(3, 100), verify=((2, 50),))


def written(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in (header().to_line(), *lines)), encoding="utf-8")
    return path


sizes = st.integers(1, 1 << 20)
contexts = st.lists(st.integers(0, 1 << 17), min_size=1, max_size=5).map(tuple)
pairs = st.lists(st.tuples(sizes, st.integers(0, 1 << 17)), max_size=3).map(tuple)
tasks = st.one_of(
    st.builds(TaskSpec, st.just("step"), prefill=pairs, decode=contexts, verify=pairs),
    st.builds(TaskSpec, st.just("gemm"), gemm=st.sampled_from(["qkv", "lm_head"]), rows=sizes, n=sizes, k=sizes),
    st.builds(TaskSpec, st.just("prefill_attention"), tokens=sizes, context=st.integers(0, 9)),
    st.builds(TaskSpec, st.just("decode_attention"), contexts=contexts),
    st.builds(TaskSpec, st.just("verify_attention"), width=sizes, contexts=contexts),
    st.builds(TaskSpec, st.sampled_from(["copy", "swap_in", "swap_out"]), num_bytes=sizes, num_blocks=sizes),
    st.just(TaskSpec("launch")),
)
seconds = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=4).map(tuple)


@given(task=tasks, samples=seconds)
def test_a_measurement_survives_the_round_trip(task: TaskSpec, samples: tuple[float, ...]) -> None:
    measurement = Measurement(task, samples, spent_s=1.5)
    again = Measurement.from_json(json.loads(measurement.to_line()))
    assert again == measurement
    assert again.task.key == task.key
    assert hash(again.task) == hash(task)


def test_the_lines_are_those_of_the_format() -> None:
    assert STEP.key == '{"kind":"step","prefill":[[4,8]],"decode":[3,100],"verify":[[2,50]]}'
    assert json.loads(Measurement(STEP, (0.25,)).to_line()) == {
        "task": {"kind": "step", "prefill": [[4, 8]], "decode": [3, 100], "verify": [[2, 50]]},
        "outcome": "ok",
        "seconds": [0.25],
        "spent_s": 0.0,
    }
    assert json.loads(header().to_line())["schema"] == "tokenwork-samples/1"
    assert STEP.shape == StepShape(((4, 8),), 2, 103, ((2, 50),))


def test_median_and_spread_are_derived_from_raw_samples() -> None:
    measurement = Measurement(STEP, (1.0, 2.0, 3.0, 4.0, 10.0))
    assert (measurement.median_s, measurement.iqr_s) == (3.0, 2.0)
    assert measurement.noise_ratio == pytest.approx(2 / 3)


def test_a_file_is_appended_to_and_an_interrupted_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    with SamplesWriter(path, header()) as writer:
        assert writer.found == ()
        writer.append(Measurement(STEP, (0.5,)))
    with path.open("a", encoding="utf-8") as file:
        file.write('{"task": {"kind": "la')
    assert len(read_samples(path).measurements) == 1
    with SamplesWriter(path, header(created="2026-12-01", minutes=9.0)) as writer:
        assert [m.task for m in writer.found] == [STEP]
        writer.append(Measurement(TaskSpec("launch"), (), "oom", "no memory"))
    found = read_samples(path)
    assert found.header == header()
    assert [m.outcome for m in found.measurements] == ["ok", "oom"]


def test_a_file_cut_inside_its_header_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text(header().to_line()[:40], encoding="utf-8")
    with SamplesWriter(path, header()) as writer:
        writer.append(Measurement(STEP, (0.5,)))
    assert len(read_samples(path).measurements) == 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"dtype": "bfloat16"}, "dtype is 'float32' in one and 'bfloat16' in the other"),
        ({"seed": 4}, "seed is 0 in one and 4 in the other"),
        ({"model": timed_model("llama-3.1-8b")}, "model.name is 'small-llama' in one and 'llama-3.1-8b' in the other"),
        (
            {"device": DeviceInfo(name="a cpu", kind="cpu", memory_bytes=1 << 30, threads=2)},
            "device.threads is 1 in one and 2 in the other",
        ),
    ],
)
def test_a_run_does_not_go_on_with_another_runs_file(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    path = written(tmp_path / "samples.jsonl")
    with pytest.raises(SamplesError, match=f"samples.jsonl:1: cannot go on with this file: {complaint}"):
        SamplesWriter(path, header(**change))


def test_headers_go_together_whatever_the_clock_and_the_date_were() -> None:
    device = header().device.model_copy(update={"clocks_mhz": {}})
    assert header().difference(header(device=device, created="2027-01-01", seed=3, minutes=1.0)) is None


OK = Measurement(STEP, (0.5,)).to_line()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (OK.replace("0.5", "NaN"), "samples.jsonl:3: not JSON: NaN is not a measurement"),
        (OK.replace("0.5", "1e999"), "samples.jsonl:3: seconds must be finite numbers >= 0"),
        (OK.replace("0.5", "-1"), "samples.jsonl:3: seconds must be finite numbers >= 0"),
        (OK.replace("0.5", "0"), "samples.jsonl:3: outcome 'ok' with 1 samples: ok needs some, each > 0"),
        (OK.replace("0.5", '"1"'), "samples.jsonl:3: seconds must be finite numbers >= 0"),
        (OK.replace("[0.5]", "[]"), "samples.jsonl:3: outcome 'ok' with 0 samples"),
        (OK.replace('"ok"', '"fine"'), "samples.jsonl:3: unknown outcome 'fine': known are ok, oom, failed"),
        (OK.replace('"step"', '"walk"'), "samples.jsonl:3: unknown kind of task 'walk': known are step, gemm"),
        (OK.replace('"decode"', '"decodes"'), "samples.jsonl:3: task of kind 'step' has no field 'decodes'"),
        (OK.replace("[4,8]", "[0,8]"), "samples.jsonl:3: prefill="),
        (OK.replace("[4,8]", "[4]"), "samples.jsonl:3: prefill="),
        (OK.replace("[3,100]", "[3,-1]"), "samples.jsonl:3: decode="),
        (OK.replace("[3,100]", "[true]"), "samples.jsonl:3: decode="),
        (OK.replace("outcome", "result"), "samples.jsonl:3: unknown field 'result'"),
        ("[]", "samples.jsonl:3: must be an object"),
        ("{", "samples.jsonl:3: not JSON"),
        ("[" * 100_000, "samples.jsonl:3: not JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    path = written(tmp_path / "samples.jsonl", OK, line)
    with pytest.raises(SamplesError) as caught:
        read_samples(path)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("first", "complaint"),
    [
        ("", "samples.jsonl: is empty"),
        ('{"a": 1}\n', "samples.jsonl:1: not a samples file: schema is None, must be 'tokenwork-samples/1'"),
        ('{"schema": "tokenwork-samples/2"}\n', "is newer than this program knows ('tokenwork-samples/1')"),
        ('{"schema": "tokenwork-samples/1"}\n', "samples.jsonl:1: header: device: Field required"),
    ],
)
def test_a_bad_header_is_named(tmp_path: Path, first: str, complaint: str) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text(first, encoding="utf-8")
    with pytest.raises(SamplesError) as caught:
        read_samples(path)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"kind": "step"}, "at least one of prefill, decode, verify"),
        ({"kind": "decode_attention"}, "contexts must not be empty"),
        ({"kind": "gemm", "gemm": "qkv", "rows": 0, "n": 1, "k": 1}, "rows=0 must be whole numbers >= 1"),
        ({"kind": "gemm", "gemm": "up", "rows": 1, "n": 1, "k": 1}, "unknown gemm 'up'"),
        ({"kind": "launch", "rows": 2}, "rows does not belong to a task of kind 'launch'"),
    ],
)
def test_a_task_that_makes_no_sense_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        TaskSpec(**fields)
