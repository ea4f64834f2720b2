"""What a comparison keeps of one run: its metrics, their values block by block, and the latencies of each request."""

from __future__ import annotations

import copy
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sim.results.arrays import BoolArray, FloatArray
from sim.results.blocked import WAITED_FOR
from sim.results.catalog import SINGLES, SPREADS
from sim.results.columns import NEVER
from sim.results.measure import NS_PER_S, Measured
from sim.results.metrics import PERCENTS, STATISTICS, Row, compute
from sim.results.run import RunResult
from sim.results.summary import targets_text
from sim.results.verdict import RunState
from sim.variants import Key

RATES = ("goodput_per_s", "finished_per_s", "output_tokens_per_s")
BY_BLOCK = (
    *RATES,
    "slo_met_offered_ratio",
    "offered_per_s",
    *(f"{statistic}_{spread}" for spread in ("ttft_s", "tpot_s", "e2e_s") for statistic in ("mean", "p50", "p99")),
)
"""Metrics that requests of one piece of a run have by themselves; those of steps and pools do not."""

SLOWEST_SHARE = 0.01
"""Of requests by TTFT: whose waits are looked at to say why."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. Everything in it is small and can be sent between processes."""

    key: Key
    scenario: dict[str, Any]
    """To repeat it: traces and code by name and hash."""
    state: RunState
    lines: tuple[str, ...]
    """What is not as it should be."""
    rows: dict[str, Row]
    reasons: dict[str, dict[str, int]]
    blocks: dict[str, tuple[float | None, ...]]
    """Metric -> its value in each block; empty where there are no blocks."""
    slowest_waited: dict[str, float]
    """Blocker -> its share of what the slowest requests waited; empty if they did not."""
    latency_s: dict[str, FloatArray]
    """`ttft_s`, `tpot_s`, `e2e_s` of each request of the trace; NaN where it has none. Shape: (num_requests,)"""
    trace: tuple[str, str, int]
    """Name, sha256 (empty: not a file), rows."""
    profile: str
    slo: str
    """The targets in words; empty without."""
    notes: tuple[str, ...]


def cell_of(key: Key, run: RunResult, blocks: int | None) -> Cell:
    measured = Measured(run)
    metrics = compute(measured)
    return Cell(
        key=key,
        scenario=run.scenario,
        state=metrics.verdict.state,
        lines=metrics.verdict.lines,
        rows=metrics.rows,
        reasons=metrics.reasons,
        blocks=_by_block(measured, blocks) if blocks is not None else {},
        slowest_waited=_slowest_waited(measured),
        latency_s={
            "ttft_s": _seconds(measured.ttft_ns, measured.served),
            "tpot_s": _seconds(measured.tpot_ns, measured.served),
            "e2e_s": _seconds(measured.e2e_ns, measured.served),
        },
        trace=(run.trace.name, run.trace.sha256 or "", len(run.trace)),
        profile=run.profile_name,
        slo=targets_text(run),
        notes=run.notes,
    )


def _seconds(time_ns: Any, known: BoolArray) -> FloatArray:
    return np.where(known, time_ns / NS_PER_S, np.nan)


def _slowest_waited(measured: Measured) -> dict[str, float]:
    ttft_ns = measured.ttft_ns[measured.served]
    if not len(ttft_ns):
        return {}
    slowest = measured.served & (measured.ttft_ns >= np.quantile(ttft_ns, 1 - SLOWEST_SHARE))
    waited = measured.blocked_ns[:, slowest].sum(axis=1)
    total = int(waited.sum())
    return {b.value: int(ns) / total for b, ns in zip(WAITED_FOR, waited, strict=True) if ns} if total else {}


# -- blocks


def _by_block(measured: Measured, blocks: int) -> dict[str, tuple[float | None, ...]]:
    """Equal pieces of the time in which requests arrive; one more than asked for, and the first is cut as warm-up."""
    arrival_ns = measured.result.trace.arrival_ns
    since_ns = arrival_ns - measured.start_ns
    last_ns = int(since_ns[measured.arrived].max(initial=0))
    block = np.minimum(since_ns * (blocks + 1) // max(1, last_ns), blocks)
    pieces = [Measured(_only(measured.result, measured.arrived & (block == each))) for each in range(1, blocks + 1)]
    lasting_s = last_ns / (blocks + 1) / NS_PER_S
    return {name: tuple(_in_block(name, piece, lasting_s) for piece in pieces) for name in BY_BLOCK}


def _in_block(name: str, piece: Measured, lasting_s: float) -> float | None:
    """Rates are per second of the block, and not of the time until the last of its requests is gone."""
    value = value_of(name, piece)
    return value if value is None or name not in RATES or not lasting_s else value * piece.duration_s / lasting_s


def _only(run: RunResult, kept: BoolArray) -> RunResult:
    """The same books as if only these requests had been offered."""
    requests = copy.copy(run.requests)
    for name in ("engine", "end_ns"):
        column = np.asarray(getattr(requests, name), dtype=np.int64)
        setattr(requests, name, array("q", np.where(kept, column, NEVER).tobytes()))
    return replace(run, requests=requests)


def value_of(name: str, measured: Measured) -> float | None:
    """One metric of the catalog by itself; None where there is none, or no finite one."""
    single = next((each for each in SINGLES if each.name == name), None)
    if single is not None:
        found = single.compute(measured)
        return float(found) if isinstance(found, int | float) else None
    statistic, _, of = name.partition("_")
    sample = next(each for each in SPREADS if each.name == of).sample(measured)
    if not sample.n:
        return None
    values: Sequence[float] = [sample.mean(), *sample.percentiles(PERCENTS), sample.max()]
    value = values[STATISTICS.index(statistic)]
    return value if math.isfinite(value) else None
