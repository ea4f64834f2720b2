"""`tokenwork conformance` over files of several scenarios, of engines with a recorder and without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from sim.commands.conformance import conformance
from sim.commands.errors import Failure
from sim.conformance import Log, Scenario
from tests.sim.conformance import fake


@pytest.fixture(autouse=True)
def _fake_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    fake.register(monkeypatch)


def write(path: Path, *scenarios: Scenario, engine: str = "fake") -> None:
    parts = {each.name: {"input": each.input, "output": each.output} for each in scenarios}
    path.write_text(json.dumps({"engine": engine, "version": "fake==1.0", "scenarios": parts}))


def changed() -> Log:
    """A recording with a difference that counts and one that does not."""
    log = fake.recorded()
    log["steps"][1]["guess"] = 5
    log["steps"][2]["left"] = 7
    return log


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "recordings"
    folder.mkdir()
    write(folder / "a.json", fake.scenario("same"), fake.scenario("drafted", speculation=True))
    write(folder / "b.json", fake.scenario("one"), fake.scenario("two"), engine="other")
    return folder


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_a_line_per_scenario_and_one_per_file_of_an_unknown_engine(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conformance(folder)
    assert lines(capsys) == [
        "fake same 3 steps, no difference",
        "fake drafted not covered: speculation",
        "other b not covered: 2 scenarios, engine not built yet",
        "1 recorded scenarios compared, 3 steps: 0 differ; 3 not covered",
    ]


def test_differences_are_told_and_only_required_ones_fail(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "c.json", fake.scenario("wrong", output=changed()))
    with pytest.raises(typer.Exit) as exit:
        conformance(folder)
    assert exit.value.exit_code == 1
    assert lines(capsys)[3:] == [
        "fake wrong 3 steps, DIFFERS at step 2: left is 1, recorded 7",
        "not required: guess differs in 1 of 3 steps, first at step 1: guess is 1, recorded 5",
        "2 recorded scenarios compared, 6 steps: 1 differ; 3 not covered",
    ]


def test_a_table_fails_as_lines_do(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conformance(folder, table=True)
    assert "| `fake` | fake==1.0 | 1 of 2 | 3 | 0 |" in lines(capsys)
    write(folder / "c.json", fake.scenario("wrong", output=changed()))
    with pytest.raises(typer.Exit):
        conformance(folder, table=True)
    assert "| `fake` | fake==1.0 | 2 of 3 | 6 | 1 |" in lines(capsys)


def test_one_engine_at_a_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conformance(folder, engine="other")
    assert lines(capsys)[-1] == "0 recorded scenarios compared, 0 steps: 0 differ; 2 not covered"
    with pytest.raises(Failure, match=r"no recordings in .* of engine third"):
        conformance(folder, engine="third")


def test_emitted_logs_agree_with_ourselves(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They have the recording's form; what is not covered is not in them."""
    ours = tmp_path / "ours"
    conformance(folder, emit_to=ours)
    assert [path.name for path in ours.iterdir()] == ["a.json"]
    capsys.readouterr()
    conformance(ours)
    assert lines(capsys) == [
        "fake same 3 steps, no difference",
        "1 recorded scenarios compared, 3 steps: 0 differ; 0 not covered",
    ]


def test_a_broken_file_fails_with_its_name(folder: Path) -> None:
    (folder / "d.json").write_text("{")
    with pytest.raises(Failure, match=r"^d\.json: not JSON") as failure:
        conformance(folder)
    assert failure.value.status == 1
