"""Files beside stdout: asked for before the run, never over what is there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def replay(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = "from sim.commands.main import main; main()"
    command = [sys.executable, "-c", program, "replay", "chat-1k", "--limit", "30", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_timeline_is_written_and_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    done = replay("--perfetto", str(path), "--perfetto-window", "0s:1s")
    assert done.returncode == 0
    assert "perfetto: " in done.stderr
    assert len(json.loads(path.read_text())["traceEvents"]) > 50
    again = replay("--perfetto", str(path))
    assert (again.returncode, again.stdout) == (2, "")
    assert "exists already (--force replaces it)" in again.stderr
    assert replay("--perfetto", str(path), "--force").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--perfetto-window", "1:2"], "is for --perfetto FILE"),
        (["--perfetto", "{tmp}/run.json", "--perfetto-window", "2:1"], "FROM must be >= 0 and before UNTIL"),
        (["--perfetto", "{tmp}/run.json", "--perfetto-window", "1"], "must be FROM:UNTIL in seconds"),
        (["--perfetto", "{tmp}/run.json", "--perfetto-window", "nan:inf"], "must be FROM:UNTIL in seconds"),
        (["--perfetto", "{tmp}"], "is a folder"),
        (["--perfetto", "{tmp}/none/run.json"], "there is no folder"),
    ],
)
def test_wrong_use_is_said_before_anything_runs(tmp_path: Path, arguments: list[str], problem: str) -> None:
    done = replay(*(argument.replace("{tmp}", str(tmp_path)) for argument in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert problem in done.stderr
