"""A run's folder of results: for people (HTML, Markdown) and for programs (JSON, Parquet)."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from sim.results.events import event_table
from sim.results.export import metrics_json
from sim.results.measure import Measured
from sim.results.metrics import compute
from sim.results.page import page
from sim.results.render import html, markdown
from sim.results.run import RunResult
from sim.results.tables import request_table, step_table, write_parquet

OURS = frozenset({"report.html", "report.md", "metrics.json", "requests.parquet", "steps.parquet", "events.parquet",
                  "compare.html", "compare.md", "compare.json", "cells.parquet"})  # fmt: skip


def why_not(out_dir: Path, *, force: bool) -> str | None:
    """Why a report must not go there: it exists and is not to be replaced, or is not ours to replace."""
    if not out_dir.exists() and not out_dir.is_symlink():
        return None
    if not force:
        return "exists already (--force replaces it)"
    if out_dir.is_symlink() or not out_dir.is_dir():
        return "is not a folder: --force replaces only a folder of results"
    if out_dir.resolve() == Path.cwd():
        return "is the folder you are in"
    strangers = sorted(path.name for path in out_dir.iterdir() if path.name not in OURS)
    return (
        f"holds {strangers[0]!r}, which is no result: --force replaces only a folder of results" if strangers else None
    )


def write_report(run: RunResult | Measured, out_dir: Path) -> None:
    """Write report.html, report.md, metrics.json and the tables of requests, steps and events into `out_dir`.

    An existing folder is replaced: ask `why_not` first. Raises OSError.
    """
    measured = run if isinstance(run, Measured) else Measured(run)
    write_folder(out_dir, lambda folder: _write_all(measured, folder))


def write_folder(out_dir: Path, write: Callable[[Path], None]) -> None:
    """Write into a folder beside it first and rename that at the end, so that nobody ever sees half of it."""
    out_dir = Path(out_dir)
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    new = _beside(out_dir)
    try:
        write(new)
        _replace(new, out_dir)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _beside(out_dir: Path) -> Path:
    """A new, hidden folder on the same file system."""
    folder = out_dir.parent / f".{out_dir.name}.{secrets.token_hex(4)}"
    folder.mkdir()
    return folder


def _write_all(measured: Measured, folder: Path) -> None:
    metrics = compute(measured)
    (folder / "metrics.json").write_text(metrics_json(measured, metrics), encoding="utf-8")
    contents = page(measured, metrics)
    (folder / "report.html").write_text(html(contents), encoding="utf-8")
    (folder / "report.md").write_text(markdown(contents), encoding="utf-8")
    write_parquet(request_table(measured), folder / "requests.parquet")
    write_parquet(step_table(measured), folder / "steps.parquet")
    write_parquet(event_table(measured), folder / "events.parquet", index=False)


def _replace(new: Path, out_dir: Path) -> None:
    if not out_dir.exists():
        new.rename(out_dir)
        return
    old = _beside(out_dir)
    out_dir.rename(old / out_dir.name)
    new.rename(out_dir)
    shutil.rmtree(old)
