"""`tokenwork explain` as a user meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim import read_scenario, replay
from sim.commands.errors import Failure
from sim.commands.explain import explain
from sim.results.report import write_report

A4 = Path(__file__).parents[2] / "cases" / "scenarios" / "A4.toml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "a4"
    write_report(replay(read_scenario(A4)), path)
    return path


def test_the_story_of_a_preempted_request(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    explain(folder, "r1")
    assert capsys.readouterr().out == (
        "request r1: finished, prompt 34 tokens, 35 tokens out\n"
        "      0.000000 s  arrived, 1 request waiting\n"
        "      0.000000 s  admitted, nothing of it cached\n"
        "      0.010000 s  first token out\n"
        "      0.150000 s  preempted for the next block of r0 (recompute): 48 tokens of KV lost\n"
        "      0.150000 s  waits: the step has preempted (2 of 6 blocks free)\n"
        "      0.160000 s  not let in: not enough free blocks (2 of 6 blocks free, its 49 tokens take 4)\n"
        "      0.350000 s  admitted again, nothing of it cached\n"
        "      0.550000 s  finished: length, 35 tokens out\n"
        "before its first admission it waited 0.000000 s\n"
        "after 1 preemption, 48 tokens of KV lost, it waited 0.200000 s (KV blocks 0.200000 s)\n"
    )


def test_what_is_wrong_is_told_in_a_line(folder: Path) -> None:
    with pytest.raises(Failure, match=r"--request: no request has the id 'r7'; there is 'r0'"):
        explain(folder, "r7")
    with pytest.raises(Failure, match="no folder of results"):
        explain(folder / "nowhere", "r1")
    (folder / "events.parquet").rename(folder / "gone.parquet")
    with pytest.raises(Failure, match=r"events.parquet is missing"):
        explain(folder, "r1")
    (folder / "gone.parquet").rename(folder / "events.parquet")
