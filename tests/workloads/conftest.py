"""Trace files for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

CASE_FILES = Path(__file__).parent / "files"
TraceFile = Callable[..., Path]


@pytest.fixture
def case_files() -> Path:
    """The input files of the worked cases."""
    return CASE_FILES


@pytest.fixture
def trace_file(tmp_path: Path) -> TraceFile:
    """`trace_file(*lines, name=...)` writes these lines, each ended by LF; one `bytes` argument is written as it is."""

    def write(*lines: str | bytes, name: str = "conv.csv") -> Path:
        path = tmp_path / name
        if len(lines) == 1 and isinstance(lines[0], bytes):
            path.write_bytes(lines[0])
        else:
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
        return path

    return write
