"""Reading operator tables: interpolation that is exact where the truth is a line, and clear errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibrate.public_tables import GEMM_FILE, OperatorTables, TableError, line_through, read_tables


@pytest.fixture(scope="module")
def tables(tables_dir: Path) -> OperatorTables:
    return read_tables(tables_dir, query_heads=32, kv_heads=8, head_dim=128)


@pytest.mark.parametrize(("x", "y"), [(0, -1), (1, 1), (2, 3), (3, 4), (4, 5), (10, 11)])
def test_a_line_goes_on_beyond_its_ends(x: float, y: float) -> None:
    assert line_through(x, np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0, 5.0])) == y


def test_gemm_of_a_measured_shape(tables: OperatorTables) -> None:
    """4096 x 6144 are 24 * 2**20 weights; fp8 rows are not looked at."""
    curve = tables.gemm.curve(6144, 4096)
    assert line_through(640, tables.gemm.sizes_m, curve) == pytest.approx(24e-6 * 40)


@pytest.mark.parametrize(("n", "k"), [(28_672, 4096), (4096, 14_336), (128_256, 4096), (16_384, 4096)])
def test_gemm_of_shapes_between_and_beyond(tables: OperatorTables, n: int, k: int) -> None:
    """Time is proportional to n and k here, so a power law between neighbours is exact."""
    assert tables.gemm.curve(n, k)[0] == pytest.approx(n * k / 2**20 * 8e-6)


def test_gemm_outside_the_measured_sizes(tables: OperatorTables) -> None:
    with pytest.raises(TableError, match="GEMM size 100 lies outside the measured sizes"):
        tables.gemm.curve(4096, 100)


def test_noise_is_smoothed_so_that_time_never_falls_with_rows(tables_dir: Path, tmp_path: Path) -> None:
    """A spike and what it would fall to become their mean."""
    for file in tables_dir.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    frame = pd.read_parquet(tables_dir / GEMM_FILE)
    frame.loc[(frame["m"] == 1) & (frame["gemm_dtype"] == "bfloat16"), "latency"] *= 3
    frame.to_parquet(tmp_path / GEMM_FILE)
    curve = read_tables(tmp_path, query_heads=32, kv_heads=8, head_dim=128).gemm.curve(1024, 1024)
    assert curve[:5].tolist() == pytest.approx([12e-6, 12e-6, 12e-6, 12e-6, 16e-6])


def test_attention_between_and_beyond_measured_sizes(tables: OperatorTables) -> None:
    """Decode time is linear in KV tokens; prefill time in pairs, whatever the prompt's length."""
    assert tables.decode.seconds(64, 500) == pytest.approx(10e-6 + 64e-6 + 64 * 500e-9)
    assert tables.decode.seconds(10, 100_000) == pytest.approx(10e-6 + 10e-6 + 1e-3)
    assert tables.prefill.seconds(1, 2000 * 2001 / 2) == pytest.approx(10e-6 + 2000 * 2001 / 2 * 1e-9)


def test_what_the_tables_say_of_themselves(tables: OperatorTables) -> None:
    assert (tables.device, tables.engine) == ("GPU", "ENGINE 1.0")
    assert all(len(digest) == 64 for digest in tables.sha256.values())


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"no gemm_perf.parquet, context_attention_perf.parquet, .* there"):
        read_tables(tmp_path, query_heads=32, kv_heads=8, head_dim=128)


def test_an_attention_shape_that_was_not_measured(tables_dir: Path) -> None:
    with pytest.raises(TableError, match=r"context_attention_perf.parquet: no row with .*'head_dim': 100"):
        read_tables(tables_dir, query_heads=32, kv_heads=8, head_dim=100)
