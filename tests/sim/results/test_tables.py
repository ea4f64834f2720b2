"""Requests and steps as tables; Parquet files of the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from sim.results.measure import Measured
from sim.results.run import RunResult
from sim.results.tables import request_table, step_table, write_parquet

Runs = Callable[..., RunResult]


def test_a_row_per_request_with_what_happened_to_it(busy: RunResult) -> None:
    table = request_table(busy)
    assert list(table.index[:2]) == ["r0", "r1"]
    assert table.index.name == "request_id"
    finished = table[table["end"] == "finished"]
    assert len(finished) == 103
    ttft_s, tpot_s, e2e_s = finished["ttft_s"], finished["tpot_s"], finished["e2e_s"]
    total = ttft_s + tpot_s.fillna(0) * (finished["output_tokens"] - 1)
    assert total.to_numpy() == pytest.approx(e2e_s.to_numpy())
    assert (finished["queue_s"] <= ttft_s).all()
    assert set(table["client"]) == {"client-0", "client-1", "client-2"}
    assert table["preemptions"].sum() == sum(busy.requests.preemptions)
    rejected = table[table["end"] == "rejected"].iloc[0]
    assert rejected["reason"] == "prompt > KV"
    assert "needs 125 blocks" in rejected["detail"]


def test_what_did_not_happen_is_nan_and_never_zero(busy: RunResult) -> None:
    table = request_table(busy)
    rejected = table[table["end"] == "rejected"]
    for column in ("queue_s", "ttft_s", "tpot_s", "e2e_s", "max_itl_s", "preemptions", "hit_tokens"):
        assert rejected[column].isna().all(), column
    one_token = table[(table["end"] == "finished") & (table["output_tokens"] == 1)]
    assert one_token["tpot_s"].isna().all()
    assert len(one_token)


def test_requests_that_never_came_are_marked(busy_run: Runs) -> None:
    table = request_table(busy_run(max_sim_time_s=0.5))
    absent = table[table["end"] == "not_offered"]
    assert 0 < len(absent) < len(table)
    assert absent[["queue_s", "output_tokens", "max_tokens", "engine"]].isna().all().all()


def test_without_targets_nobody_knows_whether_they_were_met(run_by_hand: Runs) -> None:
    assert request_table(run_by_hand([{"token_s": [0.1]}]))["slo_met"].isna().all()


def test_steps_add_up(busy: RunResult) -> None:
    table, measured = step_table(busy), Measured(busy)
    assert table["steps"].sum() == len(measured.plans[0].step_ns)
    decoded = (table["steps"] * table["decode_requests"]).sum()
    in_decodes = measured.spans.events[measured.spans.start >= 0].sum()
    assert in_decodes <= decoded <= in_decodes + 2 * len(busy.requests.state)  # some are never delivered
    assert (table["end_s"] >= table["start_s"]).all()


def test_parquet_has_the_same_bytes_each_time_and_nothing_but_the_table(busy: RunResult, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_parquet(request_table(busy), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert pq.read_schema(tmp_path / "a").metadata is None
    back = pd.read_parquet(tmp_path / "a").set_index("request_id")
    assert np.array_equal(back["ttft_s"], request_table(busy)["ttft_s"], equal_nan=True)
    assert list(back["end"]) == list(request_table(busy)["end"])
