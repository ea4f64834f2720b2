"""A simulated run beside a measured one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sim.results.beside import NotARun, beside_text
from sim.results.report import write_report
from sim.results.run import RunResult

FILES = Path(__file__).parents[2] / "cases" / "files"


@pytest.fixture(scope="module")
def folder(busy: RunResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("beside") / "run"
    write_report(busy, out)
    return out


def test_our_own_metrics_lie_beside_themselves_without_a_difference(folder: Path) -> None:
    """`metrics.json` has the fields of a benchmark's result: it is one."""
    text = beside_text(folder, folder / "metrics.json")
    rows = [line for line in text.splitlines() if line.endswith(" %")]
    assert len(rows) > 15
    assert all(row.endswith(" 0 %") for row in rows)
    assert "not the same workload" not in text


def test_unusable_files_and_other_workloads_are_named(folder: Path) -> None:
    text = beside_text(folder, FILES / "E10_non_streaming.json")
    assert "✗ not streamed - TTFT/TPOT unusable" in text
    assert "do not calibrate from it" in text
    assert "! not the same workload: requests, input tokens, output tokens" in text
    assert next(line for line in text.splitlines() if line.startswith("TTFT mean")).split()[3] == "n/a"


def test_nothing_but_a_folder_of_results_will_do(tmp_path: Path, run_by_hand: Callable[..., RunResult]) -> None:
    with pytest.raises(NotARun, match=r"metrics\.json is missing"):
        beside_text(tmp_path, FILES / "E10_non_streaming.json")
    (tmp_path / "metrics.json").write_text(json.dumps({"tool": "other"}), encoding="utf-8")
    with pytest.raises(NotARun, match="not written by tokenwork"):
        beside_text(tmp_path, FILES / "E10_non_streaming.json")
