"""Policies from a file: found, checked, described by name and hash; and everything that can be wrong with them."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from sim import ScenarioError, make_scenario, read_scenario, replay
from sim.policies.files import BadPolicyFile, is_file, policy_class
from sim.policies.guard import PolicyBroke
from sim.policies.protocols import AdmissionPolicy
from sim.policies.registry import ADMISSION, ORDER, UnknownName
from sim.results.export import metrics_json
from sim.results.measure import Measured
from sim.results.metrics import compute

MINE = """
from sim.core.plan import ADMIT, Blocker, defer
from sim.core.queue import SortedQueue
from sim.policies.protocols import AdmissionPolicy, EvictionPolicy, OrderPolicy, PreemptionPolicy
from sim.policies.budget import ListOrder

FULL = defer(Blocker.POLICY, "too full")

class Mine(AdmissionPolicy):
    def __init__(self, alpha: float = 0.1, mode: "Literal['a', 'b']" = "a") -> None:
        self.alpha = alpha

    def decide(self, engine, request, hit, chunk_blocks):
        need = chunk_blocks - hit.blocks + hit.free_blocks
        if request.id == "7" and self.alpha == 0.7:
            return None
        spare = self.alpha * engine.store.total_blocks if engine.running else 0
        return ADMIT if need + spare <= engine.store.free_blocks else FULL

class Shortest(OrderPolicy):
    def queue(self):
        return SortedQueue(lambda request: (request.prompt_tokens, request.number))

class Mean(ListOrder):
    pass

class Oldest(PreemptionPolicy):
    def victim(self, engine, request, draft):
        return next(iter(engine.running))

class Longest(EvictionPolicy):
    def rank(self, span):
        return (-span.length, span.last_access)
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def run(policies: dict[str, Any], **engine: Any) -> Any:
    requests = [{"prompt_tokens": 40 + at, "output_tokens": 30, "max_tokens": 40} for at in range(12)]
    return replay(
        make_scenario(
            {
                "workload": {"kind": "inline", "requests": requests},
                "engine": {"preset": "reference", "num_blocks": 20, **engine},
                "policies": policies,
            }
        )
    )


@pytest.mark.parametrize(
    ("kind", "cls"),
    [
        ("order", "Shortest"),
        ("admission", "Mine"),
        ("budget", "Mean"),
        ("preemption", "Oldest"),
        ("eviction", "Longest"),
    ],
)
def test_every_kind_can_come_from_a_file(mine: Path, kind: str, cls: str) -> None:
    result = run({kind: f"{mine}:{cls}"}, prefix_cache=True, prefix_cache_kind="radix-tree")
    assert result.outcome.stalled is None
    assert result.scenario["policies"][kind]["name"] == f"mine.py:{cls}"


def test_the_result_names_file_and_hash_and_no_path(mine: Path, tmp_path: Path) -> None:
    measured = Measured(run({"admission": {"name": f"{mine}:Mine", "parameters": {"alpha": 0.2}}}))
    text = metrics_json(measured, compute(measured))
    digest = sha256(MINE.encode()).hexdigest()
    assert str(tmp_path) not in text
    assert json.loads(text)["scenario"]["policies"]["admission"] == {
        "name": "mine.py:Mine",
        "parameters": {"alpha": 0.2},
        "sha256": digest,
    }
    assert f"admission policy from mine.py:Mine, sha256 {digest[:16]}" in measured.result.notes


def test_other_content_than_the_scenario_was_made_for_is_refused(mine: Path) -> None:
    with pytest.raises(ScenarioError, match=r"policies.admission: mine.py:Mine has sha256 .*, the scenario was made"):
        run({"admission": {"name": f"{mine}:Mine", "sha256": "0" * 64}})


def test_a_scenario_file_needs_permission_to_run_code(mine: Path, tmp_path: Path) -> None:
    case = tmp_path / "case.toml"
    case.write_text('limit = 3\n[workload]\nkind = "bundled"\n[policies]\nadmission = "mine.py:Mine"\n')
    mine.write_text("raise SystemExit('ran')")
    with pytest.raises(ScenarioError, match=r"case.toml: policies.admission: mine.py:Mine is code, .* --allow-plugins"):
        read_scenario(case)
    mine.write_text(MINE)
    scenario = read_scenario(case, allow_plugins=True)  # found beside the scenario
    assert replay(scenario).outcome.stalled is None


@pytest.mark.parametrize(
    ("content", "name", "expected"),
    [
        (MINE, "mine.py:Nine", "mine.py has no class 'Nine': it has Mine"),
        (MINE, "mine.py:Shortest", "mine.py: Shortest is not a subclass of AdmissionPolicy"),
        (MINE, "mine.py", "mine.py: expected FILE.py:CLASS"),
        (MINE, "none.py:Mine", "none.py: No such file or directory"),
        ("x = 1\n\nx / 0\n", "mine.py:Mine", "mine.py, line 3: ZeroDivisionError: division by zero"),
        ("def (\n", "mine.py:Mine", "mine.py, line 1: SyntaxError: "),
        ("import no_such_thing", "mine.py:Mine", "mine.py, line 1: ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)", "mine.py:Mine", "mine.py, line 1: SystemExit: 3"),
    ],
)
def test_what_is_wrong_with_a_file(
    mine: Path, monkeypatch: pytest.MonkeyPatch, content: str, name: str, expected: str
) -> None:
    mine.write_text(content)
    monkeypatch.chdir(mine.parent)
    assert is_file(name)
    with pytest.raises(BadPolicyFile, match=expected):
        policy_class(name, AdmissionPolicy)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"beta": 1}, "has no parameter 'beta': it has alpha, mode"),
        ({"alpha": "x"}, "alpha must be a number, got 'x'"),
        ({"alpha": float("nan")}, "alpha must be a number, got nan"),
    ],
)
def test_parameters_are_checked_as_for_our_own(mine: Path, parameters: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        ADMISSION.make(f"{mine}:Mine", **parameters)


def test_changed_content_is_another_class(mine: Path) -> None:
    """A notebook that edits its file gets what it has written."""
    before = ORDER.maker(f"{mine}:Shortest")
    assert ORDER.maker(f"{mine}:Shortest") is before
    mine.write_text(MINE + "\n# edited\n")
    assert ORDER.maker(f"{mine}:Shortest") is not before


def test_engines_do_not_come_from_files(mine: Path) -> None:
    """An engine's name may stand in any scenario file."""
    with pytest.raises((UnknownName, ScenarioError), match="unknown engine preset"):
        make_scenario({"workload": {"kind": "bundled"}, "engine": f"{mine}:Mine"})


def test_a_broken_contract_stops_the_run(mine: Path) -> None:
    with pytest.raises(PolicyBroke, match="admission 'Mine' broke 'decide returns a Decision': got None for request 7"):
        run({"admission": {"name": f"{mine}:Mine", "parameters": {"alpha": 0.7}}})
