"""A comparison's folder: for people (HTML, Markdown) and for programs (JSON, Parquet)."""

from __future__ import annotations

from pathlib import Path

from sim.results.comparison.comparison import Comparison
from sim.results.comparison.export import comparison_json
from sim.results.comparison.page import page
from sim.results.comparison.tables import cell_table
from sim.results.render import filled, preformatted
from sim.results.report import write_folder
from sim.results.tables import write_parquet


def write_comparison(comparison: Comparison, out_dir: Path) -> None:
    """Write compare.html, compare.md, compare.json and cells.parquet. An existing folder is replaced: ask `why_not`
    first. Raises OSError."""
    write_folder(out_dir, lambda folder: _write_all(comparison, folder))


def _write_all(comparison: Comparison, folder: Path) -> None:
    contents = page(comparison)
    (folder / "compare.json").write_text(comparison_json(comparison), encoding="utf-8")
    (folder / "compare.html").write_text(
        filled("compare.html", page=contents, preformatted=preformatted), encoding="utf-8"
    )
    (folder / "compare.md").write_text(filled("compare.md", page=contents), encoding="utf-8")
    write_parquet(cell_table(comparison), folder / "cells.parquet", index=False)
