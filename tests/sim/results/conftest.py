"""Runs to compute results from: small replays with everything that can happen, and books written by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from costmodel.config import LinearConfig, build_cost_model
from sim.core.lifecycle import State
from sim.driver import Outcome
from sim.replay import replay
from sim.results.columns import STATE_CODES, EngineLog, RequestColumns
from sim.results.run import EngineFacts, RunResult, Slo
from sim.scenario import make_scenario
from workloads.trace import Trace

NS = 1_000_000_000


@dataclass(frozen=True)
class Done:
    """A request by hand: when it came, when tokens came out, how it ended."""

    token_s: Sequence[float] = ()
    arrival_s: float = 0.0
    output_tokens: int | None = None
    state: State = State.FINISHED


def _run_by_hand(rows: Sequence[dict[str, Any]], *, slo: Slo | None = None, end_s: float | None = None) -> RunResult:
    """Books of requests whose tokens all came by themselves (as from prefills), on an engine that ran no steps."""
    done = [Done(**row) for row in rows]
    columns = RequestColumns(len(done))
    log = EngineLog(0, columns)
    for row, each in enumerate(done):
        columns.engine[row] = 0
        columns.state[row] = STATE_CODES[each.state]
        columns.output_tokens[row] = len(each.token_s) if each.output_tokens is None else each.output_tokens
        last_s = each.token_s[-1] if each.token_s else each.arrival_s
        if each.token_s:
            columns.admitted_ns[row] = round(each.arrival_s * NS)
        columns.end_ns[row] = round((last_s if end_s is None else end_s) * NS)
        for token_s in each.token_s:
            log.segments.add(row, -1, round(token_s * NS))
    return _run_of(columns, [log], arrival_ns=[round(each.arrival_s * NS) for each in done], slo=slo or Slo())


def _run_of(
    columns: RequestColumns, logs: list[EngineLog], *, arrival_ns: list[int], slo: Slo | None = None
) -> RunResult:
    rows = len(columns.state)
    trace = Trace(
        name="by-hand",
        format="inline",
        arrival_ns=np.array(arrival_ns, np.int64),
        prompt_tokens=np.full(rows, 10),
        output_tokens=np.asarray(columns.output_tokens),
        max_tokens=np.full(rows, 1000),
    )
    facts = EngineFacts("by-hand", 100, 16, 8, 4096, None, False, 1, 0, 0)
    return RunResult(
        scenario={"seed": 0},
        trace=trace,
        requests=columns,
        logs=logs,
        engines=[facts] * len(logs),
        costs=[build_cost_model(LinearConfig(a_s=0.01, b_s_per_token=0.0))] * len(logs),
        profile_name="linear",
        slo=slo,
        outcome=Outcome(int(max(columns.end_ns, default=0)), 0),
    )


def _busy_run(requests: int = 120, *, hostile: str = "", **changes: object) -> RunResult:
    """A small pool under load: preemptions, rejections, timeouts, cancels, prefix hits and more than one client."""
    rng = np.random.default_rng(5)
    arrivals = np.cumsum(rng.exponential(0.012, requests))
    rows = []
    for at in range(requests):
        row = {
            "id": f"{hostile}r{at}",
            "arrival_s": float(arrivals[at]),
            "prompt_tokens": int(rng.integers(20, 160)) if at % 30 != 7 else 2000,
            "output_tokens": int(rng.integers(1, 80)),
            "client": f"{hostile}client-{at % 3}",
            "prefix_ids": [1, 2] if at % 4 == 0 else [],
        }
        row |= {"timeout_s": 0.6} if at % 11 == 3 else {}
        row |= {"cancel_after_s": 0.3} if at % 13 == 4 else {}
        rows.append(row)
    scenario = {
        "workload": {"kind": "inline", "requests": rows, "prefix_group_tokens": 16},
        "engine": {"preset": "vllm-v1", "num_gpu_blocks_override": 81, "max_num_batched_tokens": 256},
        "cost": {"kind": "linear", "a_s": 0.005, "b_s_per_token": 2e-5},
        "slo": {"ttft_s": 0.5, "tpot_s": 0.02},
    }
    return replay(make_scenario(scenario | changes))


@pytest.fixture(scope="session")
def run_by_hand() -> Callable[..., RunResult]:
    """Makes a run of rows with the fields of `Done`."""
    return _run_by_hand


@pytest.fixture(scope="session")
def busy_run() -> Callable[..., RunResult]:
    return _busy_run


@pytest.fixture(scope="session")
def busy() -> RunResult:
    return _busy_run()
