"""Measured operator times from aiconfigurator's performance database, as smooth functions of size."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import isotonic_regression

FloatArray = npt.NDArray[np.float64]

GEMM_FILE = "gemm_perf.parquet"
PREFILL_FILE = "context_attention_perf.parquet"
DECODE_FILE = "generation_attention_perf.parquet"
WINDOW_COLUMN = "window_size"
S_PER_MS = 1e-3


class TableError(ValueError):
    """A table that lacks what is asked of it."""


def line_through(x: float, xs: FloatArray, ys: FloatArray) -> float:
    """Linear interpolation; beyond either end the line of the last two points goes on."""
    right = int(np.clip(np.searchsorted(xs, x), 1, len(xs) - 1))
    left = right - 1
    share = (x - xs[left]) / (xs[right] - xs[left])
    return float(ys[left] + share * (ys[right] - ys[left]))


@dataclass(frozen=True)
class GemmTable:
    """Seconds of (m, k) x (k, n), one dtype."""

    sizes_m: FloatArray
    seconds: Mapping[tuple[int, int], FloatArray]
    """Per (n, k), over `sizes_m`; never falling, because more rows are never less work (noise is 3 %, spikes 17 %)."""

    @cached_property
    def widths(self) -> list[int]:
        return sorted({n for n, _ in self.seconds})

    def curve(self, n: int, k: int) -> FloatArray:
        """Seconds over `sizes_m`; unmeasured n or k by a power law between neighbours, n beyond the table in pieces."""
        if (n, k) in self.seconds:
            return self.seconds[n, k]
        largest = self.widths[-1]
        if n > largest:
            return self.curve(largest, k) * (n / largest)
        depths = sorted({depth for width, depth in self.seconds if width == n})
        if depths:
            low, high = _neighbours(k, depths)
            return _power_law(k, low, high, self.seconds[n, low], self.seconds[n, high])
        low, high = _neighbours(n, sorted(width for width, depth in self.seconds if depth == k))
        return _power_law(n, low, high, self.seconds[low, k], self.seconds[high, k])


def _neighbours(value: int, known: list[int]) -> tuple[int, int]:
    below = [size for size in known if size < value]
    above = [size for size in known if size > value]
    if not below or not above:
        raise TableError(f"GEMM size {value} lies outside the measured sizes {known}")
    return below[-1], above[0]


def _power_law(size: int, low: int, high: int, at_low: FloatArray, at_high: FloatArray) -> FloatArray:
    share = np.log(size / low) / np.log(high / low)
    return np.asarray(at_low ** (1 - share) * at_high**share)


@dataclass(frozen=True)
class AttentionTable:
    """Seconds of one layer's attention over sequences and the work of each: a decode's KV tokens, a prompt's pairs."""

    sequences: FloatArray
    rows: Mapping[int, tuple[FloatArray, FloatArray]]
    """Per number of sequences: work of each, seconds."""

    def seconds(self, sequences: float, work_each: float) -> float:
        """Linear between measured sizes, and beyond them."""
        over_sequences = [line_through(work_each, *self.rows[int(count)]) for count in self.sequences]
        return line_through(sequences, self.sequences, np.array(over_sequences))


@dataclass(frozen=True)
class OperatorTables:
    """What one directory of the database says of one attention shape."""

    gemm: GemmTable
    prefill: AttentionTable
    decode: AttentionTable
    device: str
    engine: str
    sha256: Mapping[str, str]
    """By file name."""


def read_tables(directory: Path, *, query_heads: int, kv_heads: int, head_dim: int) -> OperatorTables:
    """bf16 everywhere, no window."""
    shape: dict[str, int | str] = {
        "num_heads": query_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        WINDOW_COLUMN: 0,
        "attn_dtype": "bfloat16",
        "kv_cache_dtype": "bfloat16",
    }
    files = (GEMM_FILE, PREFILL_FILE, DECODE_FILE)
    missing = [name for name in files if not (directory / name).is_file()]
    if missing:
        raise TableError(f"{directory}: no {', '.join(missing)} there")
    gemm = pd.read_parquet(directory / GEMM_FILE)
    first = gemm.iloc[0]
    return OperatorTables(
        gemm=_gemm_table(gemm),
        prefill=_attention_table(directory / PREFILL_FILE, shape, "isl", _prompt_pairs),
        decode=_attention_table(directory / DECODE_FILE, shape, "step", _same),
        device=str(first["device"]),
        engine=f"{first['framework']} {first['version']}",
        sha256={name: hashlib.sha256((directory / name).read_bytes()).hexdigest() for name in files},
    )


def _gemm_table(frame: pd.DataFrame) -> GemmTable:
    frame = frame[frame["gemm_dtype"] == "bfloat16"]
    grid = frame.pivot_table(index=["n", "k"], columns="m", values="latency", aggfunc="median").dropna()
    seconds = {
        (int(n), int(k)): isotonic_regression(times * S_PER_MS).x
        for (n, k), times in zip(grid.index, grid.to_numpy(), strict=True)
    }
    return GemmTable(sizes_m=grid.columns.to_numpy(dtype=np.float64), seconds=seconds)


def _prompt_pairs(tokens: FloatArray) -> FloatArray:
    return tokens * (tokens + 1) / 2


def _same(tokens: FloatArray) -> FloatArray:
    return tokens


def _attention_table(
    path: Path, shape: Mapping[str, int | str], length: str, work: Callable[[FloatArray], FloatArray]
) -> AttentionTable:
    frame = pd.read_parquet(path)
    for column, value in shape.items():
        if column == WINDOW_COLUMN and column not in frame.columns:
            continue  # older tables know no windows
        frame = frame[frame[column] == value]
    if frame.empty:
        raise TableError(f"{path.name}: no row with {dict(shape)}")
    grid = frame.pivot_table(index="batch_size", columns=length, values="latency", aggfunc="median")
    works = work(grid.columns.to_numpy(dtype=np.float64))
    rows = {}
    for sequences, times in zip(grid.index, grid.to_numpy(), strict=True):
        measured = ~np.isnan(times)
        rows[int(sequences)] = (works[measured], times[measured] * S_PER_MS)
    return AttentionTable(np.array(sorted(rows), dtype=np.float64), rows)
