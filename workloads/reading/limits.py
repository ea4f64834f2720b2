"""How much of a stranger's file we are ready to read."""

from __future__ import annotations

from pydantic import Field

from workloads.config import Config


class ReadLimits(Config):
    """Bounds on a trace file; going over one is an error that names it."""

    line_bytes: int = Field(default=1 << 20, ge=1)
    decompressed_bytes: int = Field(default=4 << 30, ge=1)
    rows: int = Field(default=10_000_000, ge=1)
    left_out_rows: int = Field(default=1_000_000, ge=0)
    """Malformed and failed rows together (each is kept with its reason)."""
    json_depth: int = Field(default=16, ge=1)
    tokens: int = Field(default=10_000_000, ge=1)
    """Of one prompt, one output or one max_tokens."""
