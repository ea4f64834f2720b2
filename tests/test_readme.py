"""What the README shows is what comes out."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sim import make_scenario, replay
from sim.commands.conformance import conformance
from sim.commands.main import COMMANDS, load
from sim.core.lifecycle import diagram
from sim.results.console import result_text
from sim.variants import make_plan

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
OWN_POLICY = "## Write a policy in 30 lines"


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def chapter(heading: str) -> str:
    return README.split(f"\n{heading}\n")[1].split("\n## ")[0]


def test_the_lifecycle_diagram_is_the_tables() -> None:
    assert diagram() + "\n" in blocks("mermaid")


def test_the_quickstarts_output_is_real() -> None:
    run = replay(
        make_scenario({"workload": {"kind": "bundled", "name": "chat-1k"}, "slo": {"ttft_s": 1, "tpot_s": 0.03}})
    )
    shown = [line.rstrip() for line in result_text(run).rstrip().splitlines()]
    assert "\n".join(shown) in "\n".join(line.rstrip() for line in README.splitlines())


def test_the_table_of_recorded_decisions_is_real(capsys: pytest.CaptureFixture[str]) -> None:
    """Paste what `tokenwork conformance --table` prints."""
    conformance(table=True)
    section = README.split("### Recorded decisions")[1].split("\n## ")[0]
    assert f"\n\n{capsys.readouterr().out}\n" in section


def test_the_python_example_runs() -> None:
    example = blocks("python", README.split(OWN_POLICY)[0])[0]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(example, "README.md", "exec"), {})
    assert re.fullmatch(r"\d+ \d+\n", out.getvalue())


def test_the_notebook_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, because it writes a report."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    (example,) = blocks("python", chapter("## Reports and metrics"))
    exec(compile(example, "README.md", "exec"), {})
    assert (tmp_path / "report" / "report.html").exists()


def test_the_scenario_and_the_plan_are_what_they_say() -> None:
    of_comparing, of_replay = sorted(blocks("toml"), key=lambda text: "[variants]" not in text)
    scenario = make_scenario(tomllib.loads(of_replay), place="README.md")
    assert len(replay(scenario.model_copy(update={"limit": 50})).trace) == 50
    assert list(make_plan(tomllib.loads(of_comparing), place="README.md").variants) == ["small", "large", "other"]


def test_every_command_and_option_named_exists() -> None:
    for name in COMMANDS:
        assert f"`tokenwork {name}" in README
    options = {option for parameter in load("replay").params for option in parameter.opts}
    section = README.split("### Options of `replay`")[1].split("###")[0]
    for option in re.findall(r"--[a-z-]+", section):
        assert option in options | {"--verbose"}, option


def test_the_policy_in_30_lines_is_one_and_its_commands_run(tmp_path: Path) -> None:
    """The chapter's files, saved as they are shown, and its commands, run beside them: the checks too."""
    text = chapter(OWN_POLICY)
    files = re.findall(r"`(\w+\.py)`:\n\n```python\n(.*?)```", text, re.S)
    assert [name for name, _ in files] == ["growth.py", "test_growth.py"]
    assert len([line for line in files[0][1].splitlines() if line]) <= 30
    for name, code in files:
        (tmp_path / name).write_text(code, encoding="utf-8")
    programs = {
        "tokenwork": ["-c", "from sim.commands.main import main; main()"],
        "pytest": ["-m", "pytest", "-p", "no:cacheprovider"],
    }
    for line in blocks("console", text)[0].splitlines():
        program, *arguments = line.split()
        command = [sys.executable, *programs[program], *arguments]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"{line}\n{result.stdout}\n{result.stderr}"
    before, after = (
        json.loads((tmp_path / name / "metrics.json").read_text())["metrics"] for name in ("before", "after")
    )
    preempted = [one["num_preemptions"]["value"] for one in (before, after)]
    tpot_ms = [round(1e3 * one["p99_tpot_s"]["value"]) for one in (before, after)]
    lost = 1 - after["finished_per_s"]["value"] / before["finished_per_s"]["value"]
    words = " ".join(text.split())
    assert f"{preempted[0]} preemptions become {preempted[1]} and" in words
    assert f"from {tpot_ms[0]} to {tpot_ms[1]} ms, for {lost:.0%}".replace("%", " %") in words


def test_make_targets_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`make ([a-z]+)|^make ([a-z]+)", README, re.M)):
        target = "".join(target)
        assert f"\n{target}:" in makefile, target
