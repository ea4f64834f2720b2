"""Who may import whom: dependencies run along the data flow and nowhere else."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.engines import ENGINES

ROOT = Path(__file__).parents[1]
OURS = ("sim", "costmodel", "calibrate", "workloads")
HEAVY = ("pandas", "pyarrow", "scipy", "torch", "matplotlib")


def modules(package: str) -> Iterator[tuple[str, set[str]]]:
    """(path in the repository, imported module names) of every module of a package."""
    for path in sorted((ROOT / package).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: imports are absolute"
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
        yield str(path.relative_to(ROOT)), names


def offenders(package: str, *forbidden: str) -> list[str]:
    return [
        f"{path} imports {name}"
        for path, names in modules(package)
        for name in sorted(names)
        if any(name == prefix or name.startswith(prefix + ".") for prefix in forbidden)
    ]


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("workloads", ("sim", "costmodel", "calibrate")),
        ("costmodel", ("sim", "workloads", "calibrate", "torch")),
        ("sim", ("calibrate", "torch")),
        ("sim/core", ("simpy", "sim.driver", "sim.server", "sim.results", "sim.engines", "workloads", "numpy")),
        ("sim/kv", ("simpy", "sim.driver", "sim.server", "sim.results", "sim.engines", "workloads")),
        ("sim/policies", ("simpy", "sim.driver", "sim.server", "sim.results", "sim.engines", "workloads")),
    ],
)
def test_imports_run_along_the_data_flow(package: str, forbidden: tuple[str, ...]) -> None:
    assert offenders(package, *forbidden) == []


def test_only_the_driver_imports_simpy() -> None:
    found = {line.split()[0] for package in OURS for line in offenders(package, "simpy")}
    assert found == {"sim/driver.py"}


def test_only_calibrate_imports_torch() -> None:
    found = {line.split("/")[0] for package in OURS for line in offenders(package, "torch")}
    assert found <= {"calibrate"}


def test_importing_sim_is_light() -> None:
    """Nobody pays for tables, figures or kernels who only replays."""
    code = f"import sim, sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert out.stdout.strip() == "[]"


def test_preset_names_occur_only_where_presets_are_made() -> None:
    """Outside presets, their recordings and the command line's default, no code knows its engine (docstrings may)."""
    presets = ENGINES.names()
    allowed = ("sim/engines/", "sim/conformance/", "sim/commands/")
    found = []
    for package in OURS:
        for path, _ in modules(package):
            if path.startswith(allowed):
                continue
            for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and node.value in presets and "/" not in str(node.value):
                    found.append(f"{path}:{node.lineno} {node.value}")
    assert [line for line in found if "calibrate" not in line and "costmodel" not in line] == []


def test_the_wheel_has_these_four_packages_and_no_other() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert config["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == list(OURS)
