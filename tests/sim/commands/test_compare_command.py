"""`tokenwork compare` from the outside: options, exit status, what goes where."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sim.commands import main as command_line

FILES = Path(__file__).parents[2] / "cases" / "files"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tokenwork", *arguments])
    with pytest.raises(SystemExit) as status:
        command_line.main()
    return int(status.value.code or 0)


def test_engines_flags_and_rates(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    arguments = ["compare", "chat-1k", "--limit", "60", "--engines", "vllm-v1,static-batch", "--jobs", "1"]
    arguments += ["--max-num-seqs", "8", "--vary", "max-num-batched-tokens=512,2048", "--rate-scale", "1,2"]
    assert run(monkeypatch, *arguments, "--slo", "ttft=1", "--out", str(out)) == 0
    said = capsys.readouterr()
    assert "A vllm-v1 max_num_batched_tokens=512" in said.out
    assert "C static-batch" in said.out
    assert "6 of 6 runs" in said.err
    assert str(tmp_path) not in said.out
    document = json.loads((out / "compare.json").read_text())
    assert document["runs"][0]["scenario"]["engine"]["max_num_seqs"] == 8
    assert run(monkeypatch, *arguments, "--out", str(out)) == 2
    assert "exists already" in capsys.readouterr().err
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(document["plan"]), encoding="utf-8")
    assert run(monkeypatch, "compare", "--file", str(plan), "--jobs", "1") == 0
    assert capsys.readouterr().out == said.out


def test_policies_have_parameters(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", "chat-1k", "--limit", "40", "--jobs", "1", "--engines", "reference"]
    assert run(monkeypatch, *arguments, "--vary", "admission=optimistic,optimistic:watermark_blocks=3") == 0
    assert "B reference admission=optimistic:watermark_blocks=3" in capsys.readouterr().out
    assert run(monkeypatch, *arguments, "--vary", "order=fcfs,priority") == 0
    assert "B reference order=priority" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["chat-1k"], "one variant only"),
        ([], "give a TRACE"),
        (["chat-1k", "--vary", "max_num_seqs"], "expected NAME=VALUE"),
        (["chat-1k", "--engines", "vllm-v1,vllm-v1"], "each preset once"),
        (["chat-1k", "--engines", "vllm-v1,nosuch"], "nosuch"),
        (["chat-1k", "--engines", "vllm-v1,reference", "--slotz", "3"], "has no flag --slotz"),
        (["chat-1k", "--vary", "max_num_seqs=1,2", "--seeds", "3"], "nothing is drawn"),
        (["chat-1k", "--vary", "max_num_seqs=1,2", "--seeds", "0"], "--seeds must be >= 1"),
        (["chat-1k", "--vary", "max_num_seqs=1,2", "--rate-scale", "x"], "expected numbers"),
        (["chat-1k", "--vary", "max_num_seqs=1,2", "--jobs", "0"], "--jobs must be"),
        (["chat-1k", "--file", "plan.toml"], "--file says itself"),
        (["--file", "nosuch.toml"], "nosuch.toml"),
        ([".", str(FILES / "E10_non_streaming.json")], "metrics.json is missing"),
        ([".", str(FILES / "E10_non_streaming.json"), "--engines", "a"], "takes no options"),
    ],
)
def test_wrong_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    assert run(monkeypatch, "compare", *arguments) == 2
    said = capsys.readouterr()
    assert problem in said.err
    assert said.out == ""


def test_a_run_beside_a_benchmark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert run(monkeypatch, "replay", "chat-1k", "--limit", "30", "--out", str(out)) == 0
    capsys.readouterr()
    assert run(monkeypatch, "compare", str(out), str(FILES / "E10_bench_infinity.jsonl")) == 0
    said = capsys.readouterr().out
    assert "rate x E2E = 1.0000 requests at once" in said
    assert str(tmp_path) not in said


def test_stdout_is_the_same_from_any_number_of_processes() -> None:
    line = ["compare", "chat-1k", "--limit", "80", "--vary", "max_num_seqs=4,16,64", "--rate-scale", "1,2"]
    tool = Path(sys.executable).parent / "tokenwork"
    outs = [subprocess.run([tool, *line, "--jobs", jobs], capture_output=True, check=True) for jobs in ("1", "2")]
    assert b"max_num_seqs=64" in outs[0].stdout
    assert outs[0].stdout == outs[1].stdout
