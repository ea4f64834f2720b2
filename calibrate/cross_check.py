"""Composed parts against another profiler's measurement of the same model on the same device (LLMServingSim v0)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from calibrate.compose import StepComposer
from calibrate.public_tables import TableError
from costmodel.shape import StepShape

NS_PER_S = 1e9
CHECKED_TOKENS = (1, 16, 64, 128, 256, 512, 1024, 2048)
LAYERS_OF_PART: dict[str, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "attention_out": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
    "prefill_attention": ("attn",),
    "small_kernels": ("input_layernorm", "post_layernorm", "rope", "act_fn"),
}
"""That profiler runs q, k, v and gate, up as GEMMs of their own, and norms and rope eagerly."""
COLUMNS = {"layer_name", "input", "latency(ns)"}


@dataclass(frozen=True, slots=True)
class PartDifference:
    tokens: int
    part: str
    composed_s: float
    """All layers of one prompt of so many tokens."""
    measured_s: float


def cross_check(layers_file: Path, composer: StepComposer) -> list[PartDifference]:
    """One row per number of tokens and part."""
    frame = pd.read_csv(layers_file)
    if missing := COLUMNS - set(frame.columns):
        raise TableError(f"{layers_file.name}: no column {', '.join(sorted(missing))}")
    times = frame.pivot_table(index="input", columns="layer_name", values="latency(ns)", aggfunc="median")
    rows = []
    for part, names in LAYERS_OF_PART.items():
        layer_ns = times[list(names)].sum(axis="columns")
        for tokens in CHECKED_TOKENS:
            composed_s = composer.parts(StepShape(((tokens, 0),)))[part]
            measured_s = composer.model.layers * float(layer_ns[tokens]) / NS_PER_S
            rows.append(PartDifference(tokens, part, composed_s, measured_s))
    return rows


def cross_check_text(rows: Sequence[PartDifference]) -> str:
    """A table: composed against measured per part, as a ratio."""
    parts = list(LAYERS_OF_PART)
    by_place = {(row.tokens, row.part): row for row in rows}
    lines = ["tokens  " + "  ".join(f"{part:>17}" for part in parts)]
    for tokens in CHECKED_TOKENS:
        cells = [by_place[tokens, part] for part in parts]
        ratios = [f"{cell.composed_s / cell.measured_s - 1:+.0%} of {cell.measured_s * 1e3:.2f} ms" for cell in cells]
        lines.append(f"{tokens:>6}  " + "  ".join(f"{ratio:>17}" for ratio in ratios))
    return "\n".join(lines)
