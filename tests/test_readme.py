"""What the README shows is what comes out."""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from pathlib import Path

import pytest

from sim import make_scenario, replay
from sim.commands.conformance import conformance
from sim.commands.main import COMMANDS, load
from sim.core.lifecycle import diagram
from sim.results.console import result_text

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


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
    (example,) = blocks("python")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(example, "README.md", "exec"), {})
    assert re.fullmatch(r"\d+ \d+\n", out.getvalue())


def test_the_scenario_example_is_a_scenario() -> None:
    (example,) = blocks("toml")
    scenario = make_scenario(tomllib.loads(example), place="README.md")
    assert len(replay(scenario.model_copy(update={"limit": 50})).trace) == 50


def test_every_command_and_option_named_exists() -> None:
    for name in COMMANDS:
        assert f"`tokenwork {name}" in README
    options = {option for parameter in load("replay").params for option in parameter.opts}
    section = README.split("### Options of `replay`")[1].split("###")[0]
    for option in re.findall(r"--[a-z-]+", section):
        assert option in options | {"--verbose"}, option


def test_make_targets_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`make ([a-z]+)|^make ([a-z]+)", README, re.M)):
        target = "".join(target)
        assert f"\n{target}:" in makefile, target
