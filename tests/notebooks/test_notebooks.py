"""Every notebook runs from top to bottom, and is stored without what came out."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

REPOSITORY = Path(__file__).parents[2]
TRACE = REPOSITORY.parent / "shared/data/traces/mooncake/conversation_trace.jsonl.gz"
"""A public trace that may lie beside a checkout; notebooks fall back to the bundled one."""
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_stored_without_outputs(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing cell raises, with its traceback."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("TOKENWORK_REPOSITORY", os.fspath(REPOSITORY))
    if TRACE.exists():
        monkeypatch.setenv("TOKENWORK_TRACE", os.fspath(TRACE))
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    assert notebook.cells
