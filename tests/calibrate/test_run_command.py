"""`tokenwork calibrate run` from the command line: a run in seconds, wrong flags, interruption."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from calibrate.records import read_samples
from calibrate.run_command import run
from sim.commands.errors import Failure
from tests.calibrate.small_run import config_file

PROGRAM = [sys.executable, "-c", "from sim.commands.main import main; main()", "calibrate", "run"]


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, check=False, cwd=cwd)


def test_a_run_of_seconds_and_a_longer_one_that_goes_on(tmp_path: Path) -> None:
    flags = ("--model", config_file(tmp_path), "--out", "out", "--clock", "cpu")
    first = command(*flags, "--minutes", "0.05", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("kind ")
    assert first.stdout.endswith("next: tokenwork calibrate fit out/samples.jsonl --out profile.json\n")
    file = tmp_path / "out" / "samples.jsonl"
    found = read_samples(file)
    assert found.header.model.name == "config"
    assert found.header.device.clock == "process_cpu"
    assert str(tmp_path) not in file.read_text(encoding="utf-8")
    second = command(*flags, "--minutes", "0.12", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert f"going on with out/samples.jsonl: {len(found.measurements)} tasks are there" in second.stderr
    again = read_samples(file)
    assert again.measurements[: len(found.measurements)] == found.measurements
    assert len(again.measurements) >= len(found.measurements)
    with pytest.raises(
        Failure, match=r"samples.jsonl:1: cannot go on .*: seed is 0 in one and 5 in the other"
    ) as caught:
        run(tmp_path / "out", model=flags[1], clock="cpu", seed=5)
    assert caught.value.status == 1


def test_ctrl_c_leaves_a_valid_file_and_status_130(tmp_path: Path) -> None:
    arguments = ["--model", config_file(tmp_path), "--out", "out", "--minutes", "10"]
    file = tmp_path / "out" / "samples.jsonl"
    process = subprocess.Popen([*PROGRAM, *arguments], stdout=-1, stderr=-1, text=True, cwd=tmp_path)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (file.exists() and file.read_bytes().count(b"\n") > 3):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "tokenwork: interrupted; what was timed is in out/samples.jsonl, the same command goes on\n" in err
    assert len(read_samples(file).measurements) >= 3


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"minutes": 0.0}, "--minutes must be > 0 and at most 1440, got 0"),
        ({"minutes": math.nan}, "--minutes must be > 0 and at most 1440, got nan"),
        ({"threads": 0}, r"--threads must be 1 to \d+ \(the cores this process may use\), got 0"),
        ({"threads": 4096}, r"--threads must be 1 to \d+ \(the cores this process may use\), got 4096"),
        ({"seed": -1}, "--seed must be >= 0, got -1"),
        ({"model": "gpt"}, "--model: unknown model 'gpt': known are small-llama"),
        ({"device": "cuda", "clock": "cpu"}, "--clock cpu adds up what threads use: it goes with --device cpu"),
        ({"model": "llama-3.1-405b"}, "--model: model llama-3.1-405b needs .* bytes for its weights"),
    ],
)
def test_wrong_use_is_named(tmp_path: Path, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Failure, match=complaint) as caught:
        run(tmp_path / "out", **options)
    assert caught.value.status == 2
    assert not (tmp_path / "out" / "samples.jsonl").exists()


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--device", "tpu", "--out", "out"), "'tpu' is not one of 'cpu', 'cuda'"),
        (("--model", "nowhere.json", "--out", "out"), "nowhere.json: No such file or directory"),
        ((), "Missing option '--out'"),
    ],
)
def test_wrong_use_ends_the_program_with_status_2(tmp_path: Path, flags: tuple[str, ...], complaint: str) -> None:
    result = command(*flags, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr


def test_no_other_command_needs_torch() -> None:
    code = "import sys, calibrate.commands, calibrate.records, calibrate.cases; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_without_torch_the_command_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrate.run_command.find_spec", lambda name: None)
    with pytest.raises(Failure, match=r"needs torch, .* pip install 'tokenwork\[calibrate\]'") as caught:
        run(tmp_path / "out")
    assert caught.value.status == 2
