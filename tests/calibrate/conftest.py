"""Operator tables whose every number is known."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pandas as pd
import pytest

from calibrate.compose import StepComposer
from calibrate.public_tables import DECODE_FILE, GEMM_FILE, PREFILL_FILE, read_tables
from costmodel.specs import device_spec, model_spec

HEADS = {"num_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "window_size": 0, "attn_dtype": "bfloat16"}
WIDTHS = (1024, 2048, 4096, 6144, 8192, 16_384, 65_536)
ROWS = (1, 16, 64, 128, 256, 1024, 8192, 16_384)


def gemm_ms(m: int, n: int, k: int) -> float:
    """1 us per 2**20 weights and 16 rows, and flat below 128 rows."""
    return max(m, 128) / 16 * (n * k / 2**20) * 1e-3


def prefill_ms(sequences: int, tokens: int) -> float:
    """10 us and 1 ns per pair."""
    return 0.01 + sequences * (tokens * (tokens + 1) / 2) * 1e-6


def decode_ms(sequences: int, kv_tokens: int) -> float:
    """10 us, 1 us per sequence and 1 ns per KV token."""
    return 0.01 + sequences * 1e-3 + sequences * kv_tokens * 1e-6


def _attention(length: str, sizes: tuple[tuple[int, ...], tuple[int, ...]], kind: str) -> pd.DataFrame:
    measured = prefill_ms if length == "isl" else decode_ms
    rows = [
        {**HEADS, "kv_cache_dtype": dtype, "batch_size": b, length: s, "latency": factor * measured(b, s)}
        for (b, s), (dtype, factor) in product(product(*sizes), (("bfloat16", 1), ("fp8", 100)))
        if b * s <= 65_536
    ]
    return pd.DataFrame(rows).assign(op_name=kind)


@pytest.fixture(scope="session")
def tables_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fp8 rows are there too, a hundred times slower: nobody may look at them."""
    directory = tmp_path_factory.mktemp("tables") / "h100_sxm" / "engine-1.0"
    directory.mkdir(parents=True)
    gemms = [
        {"framework": "ENGINE", "version": "1.0", "device": "GPU", "gemm_dtype": dtype}
        | {"m": m, "n": n, "k": k, "latency": factor * gemm_ms(m, n, k)}
        for (m, n, k), (dtype, factor) in product(product(ROWS, WIDTHS, WIDTHS), (("bfloat16", 1), ("fp8", 100)))
    ]
    pd.DataFrame(gemms).to_parquet(directory / GEMM_FILE)
    prompts = ((1, 2, 4, 16), (1, 16, 64, 256, 1024, 4096, 8192, 16_384))
    _attention("isl", prompts, "context_attention").to_parquet(directory / PREFILL_FILE)
    contexts = ((1, 4, 16, 64, 256, 1024), (1, 15, 63, 255, 1023, 4095, 65_535))
    _attention("step", contexts, "generation_attention").to_parquet(directory / DECODE_FILE)
    return directory


@pytest.fixture(scope="session")
def composer(tables_dir: Path) -> StepComposer:
    operators = read_tables(tables_dir, query_heads=32, kv_heads=8, head_dim=128)
    return StepComposer(operators, model_spec("llama-3.1-8b"), device_spec("h100-sxm"))
