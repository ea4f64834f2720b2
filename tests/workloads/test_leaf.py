"""`workloads` is a leaf."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import workloads

SOURCES = sorted(Path(workloads.__file__).parent.rglob("*.py"))
ALLOWED = {"workloads", "numpy", "pydantic", "pydantic_core", *sys.stdlib_module_names}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_it_imports_nothing_of_ours(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in names} <= ALLOWED
