"""Policies from files on the command line, and the list of everything that has a name."""

from __future__ import annotations

from inspect import signature
from pathlib import Path

import pytest

from sim.commands.list import list_
from sim.commands.main import _status
from sim.commands.options import policy
from sim.commands.replay import replay
from sim.engines import ENGINES
from sim.policies import all_policies
from sim.policies.guard import PolicyBroke
from sim.scenario import ScenarioError

MINE = """
from sim.core.plan import ADMIT
from sim.policies.protocols import AdmissionPolicy

class Mine(AdmissionPolicy):
    def __init__(self, nobody: str = "") -> None:
        self.nobody = nobody

    def decide(self, engine, request, hit, chunk_blocks):
        return None if request.id == self.nobody else ADMIT
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "case.toml").write_text(
        'limit = 20\n[workload]\nkind = "bundled"\n[policies]\nadmission = "mine.py:Mine"\n'
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "name", "parameters"),
    [
        ("optimistic", "optimistic", {}),
        ("optimistic:watermark_blocks=3", "optimistic", {"watermark_blocks": 3}),
        ("./mine.py:Mine", "./mine.py:Mine", {}),
        ("./mine.py:Mine:alpha=0.1:beta=x", "./mine.py:Mine", {"alpha": 0.1, "beta": "x"}),
        ("a.py/mine.py:Mine:file=b.txt", "a.py/mine.py:Mine", {"file": "b.txt"}),
    ],
)
def test_how_a_policy_is_written(text: str, name: str, parameters: dict[str, object]) -> None:
    assert policy("admission", text) == {"name": name, "parameters": parameters}


def test_a_policy_from_a_file_runs_and_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay("chat-1k", limit=20, admission="./mine.py:Mine") == 0
    assert "! admission policy from mine.py:Mine, sha256 " in capsys.readouterr().out


def test_a_broken_contract_is_one_line_and_status_1(folder: Path) -> None:
    with pytest.raises(PolicyBroke) as broke:
        replay("chat-1k", limit=20, admission='./mine.py:Mine:nobody="17"')
    assert str(broke.value) == "admission 'Mine' broke 'decide returns a Decision': got None for request 17"
    assert _status(broke.value) == 1


def test_a_scenario_file_runs_code_only_with_allow_plugins(folder: Path) -> None:
    with pytest.raises(ScenarioError, match="--allow-plugins"):
        replay(scenario=Path("case.toml"))
    assert replay(scenario=Path("case.toml"), allow_plugins=True) == 0


def test_the_list_has_every_kind_with_types_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    list_(verbose=True)
    out = capsys.readouterr().out
    list_(verbose=True)
    assert capsys.readouterr().out == out
    for kind, registry in {"engine": ENGINES, **all_policies()}.items():
        listed = out.split(f"{kind}:\n")[1]
        assert registry.names() == sorted(registry.names())
        for name in registry.names():
            (line,) = [line for line in listed.splitlines() if line.startswith(f"  {name}: ")][:1]
            assert line.rstrip() != f"  {name}:", f"{kind} {name} has no summary"
            for parameter in signature(registry.maker(name)).parameters:
                shown = "--" + parameter.replace("_", "-") if kind == "engine" else parameter
                assert f"\n    {shown}: " in listed, f"{kind} {name}: {parameter} has no type"
    assert "    watermark_blocks: int = 0\n" in out
    assert "    mode: recompute | swap | fail = recompute\n" in out
    assert "    --num-gpu-blocks-override: int | none = none\n" in out
    assert "    max_work: float (required)\n" in out
    assert "Annotated" not in out
    assert " at 0x" not in out
