"""Clients side by side."""

from __future__ import annotations

import numpy as np
import pytest

from sim.results.clients import client_rows
from sim.results.measure import Measured
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
