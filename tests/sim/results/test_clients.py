"""Clients side by side."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sim.results.clients import client_rows, jain
from sim.results.measure import Measured
from sim.results.metrics import compute
from sim.results.run import RunResult
from sim.results.tables import request_table


def test_each_client_is_what_its_rows_of_the_request_table_say(busy: RunResult) -> None:
    table = request_table(busy)
    rows = client_rows(Measured(busy))
    assert sum(row.num_offered for row in rows) == 120
    for row in rows:
        mine = table[table["client"] == row.client]
        finished = mine[mine["end"] == "finished"]
        assert row.num_offered == len(mine)
        assert row.num_finished == len(finished)
        assert row.output_tokens == mine["output_tokens"].sum()
        assert [row.p50_ttft_s, row.p99_ttft_s] == pytest.approx(np.percentile(finished["ttft_s"], [50, 99]))
        assert row.slo_met_offered_ratio == pytest.approx(mine["slo_met"].mean())


# -- fairness


def test_jains_index_is_one_for_equals_and_k_of_n_where_k_have_all() -> None:
    assert jain(np.array([3.0, 3.0, 3.0])) == 1
    assert jain(np.array([5.0, 0.0, 0.0, 0.0])) == pytest.approx(1 / 4)
    assert jain(np.array([1.0, 1.0, 0.0, 0.0])) == pytest.approx(2 / 4)


def test_fairness_is_that_of_the_clients_rows(busy: RunResult) -> None:
    metrics, rows = compute(busy), client_rows(Measured(busy))
    shares = np.array([row.output_tokens / row.asked_tokens for row in rows])
    assert metrics.value("num_clients") == 3
    assert metrics.value("client_tokens_jain_ratio") == pytest.approx(shares.sum() ** 2 / (3 * (shares**2).sum()))
    means = [row.mean_ttft_s for row in rows if row.mean_ttft_s is not None]
    assert metrics.value("client_ttft_min_max_ratio") == pytest.approx(min(means) / max(means))


def test_without_clients_there_is_nothing_to_compare(run_by_hand: Callable[..., RunResult]) -> None:
    metrics = compute(run_by_hand([{"token_s": [0.1]}]))
    for name in ("client_tokens_jain_ratio", "client_ttft_min_max_ratio"):
        assert (metrics[name].value, metrics[name].note) == (None, "the trace names no two clients")
    assert client_rows(Measured(run_by_hand([]))) == []
