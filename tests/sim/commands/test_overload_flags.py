"""Policies and the front door from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-c", "from sim.commands.main import main; main()"]


def tokenwork(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--max-in-flight", "8"], "(queue full: max_in_flight)"),
        (["--max-waiting", "1"], "(queue full: max_waiting)"),
        (["--max-waiting-tokens", "2000", "--overflow", "reject"], "(queue full: max_waiting_tokens)"),
        (["--max-in-flight", "8", "--overflow", "queue"], "policy >99.9 %"),
        (
            ["--admission", "profiled:quantile=0.9:estimate=300", "--preemption", "least-urgent-hysteresis"],
            "finished 1",
        ),
        (["--admission", "shed-late:ttft_s=0.01", "--max-num-seqs", "4"], "(deadline passed)"),
        (["--order", "edf:ttft_s=1", "--budget", "step-time:target_s=0.02"], "finished 1"),
        (["--order", "least-slack", "--budget", "equal-share:unit_tokens=16"], "finished 1"),
        (["--order", "priority-aging:aging_s=5"], "finished 1"),
    ],
)
def test_from_the_command_line(arguments: list[str], expected: str):
    """Name, parameters, and what the report says of it."""
    result = tokenwork("replay", "chat-1k", "--limit", "150", "--rate-scale", "20", *arguments)
    assert result.returncode == 0, result.stderr
    assert expected in result.stdout


def test_front_flags_win_over_a_scenarios_file(tmp_path: Path):
    """Those not given stay as they are."""
    path = tmp_path / "s.json"
    description = {"workload": {"kind": "bundled"}, "limit": 50, "rate_scale": 1000.0}
    path.write_text(json.dumps({**description, "front": {"max_in_flight": 10, "max_waiting": 5}}))
    assert "(queue full: max_waiting)" in tokenwork("replay", "--scenario", str(path)).stdout
    result = tokenwork("replay", "--scenario", str(path), "--max-waiting", "50")
    assert "(queue full: max_in_flight)" in result.stdout


def test_senseless_front_flags():
    """One line, status 2."""
    result = tokenwork("replay", "chat-1k", "--max-in-flight", "0")
    assert (result.returncode, result.stderr) == (2, "tokenwork: replay: front.max_in_flight must be >= 1, got 0\n")
