"""A run at a glance, for notebooks: its metrics as a table, its load over time, and a summary in HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.core.lifecycle import State
from sim.results import summary
from sim.results.arrays import FloatArray, IntArray, view
from sim.results.catalog import SINGLES, SPREADS
from sim.results.measure import NS_PER_S, Measured
from sim.results.metrics import STATISTICS, Metrics, Row
from sim.results.render import filled
from sim.results.steps import Plans
from sim.results.timeline import band, of_plans, waiting
from sim.results.wording import milliseconds_or_seconds, number

if TYPE_CHECKING:
    import pandas as pd


def metric_table(metrics: Metrics) -> pd.DataFrame:
    """Index: metric, as in the catalog. `value` of single figures, `mean` to `max` of distributions; missing is NaN."""
    import pandas as pd

    rows = [_facts(metrics[one.name]) | {"value": metrics[one.name].value} for one in SINGLES]
    for spread in SPREADS:
        each = metrics.spread(spread.name)
        values = {statistic: row.value for statistic, row in zip(STATISTICS, each, strict=True)}
        rows.append(_facts(each[0]) | {"metric": spread.name} | values)
    columns = ["value", *STATISTICS]
    frame = pd.DataFrame(rows).set_index("metric")
    frame[columns] = frame[columns].astype(float)
    return frame[[*columns, "n", "unit", "state", "better", "note"]]


def _facts(row: Row) -> dict[str, object]:
    return {
        "metric": row.name,
        "n": row.n,
        "unit": row.unit,
        "state": row.state,
        "better": row.better,
        "note": row.note,
    }


# -- over time


def timeline_table(measured: Measured, bin_s: float) -> pd.DataFrame:
    """Index: time_s, the beginning of each bin. Means over the bin's time, but counts of arrivals and ends."""
    import pandas as pd

    if not bin_s > 0:
        raise ValueError(f"bin_s must be > 0, got {bin_s}")
    bin_ns = round(bin_s * NS_PER_S)
    bins = max(1, -(-(measured.end_ns - measured.start_ns) // bin_ns))
    edges = measured.start_ns + bin_ns * np.arange(bins + 1)
    finished = view(measured.result.requests.end_ns)[measured.ended(State.FINISHED)]
    data: dict[str, FloatArray | IntArray] = {
        "arrived": _count(measured.result.trace.arrival_ns[measured.arrived], edges),
        "finished": _count(finished, edges),
        "waiting": band(waiting(measured), edges).mean,
        "batch_requests": _of_all(measured, edges, "requests"),
        "kv_used_blocks": _of_all(measured, edges, "used_blocks"),
        "kv_cached_blocks": _of_all(measured, edges, "cached_blocks"),
        "work": _of_all(measured, edges, "decode_work") + _of_all(measured, edges, "prefill_work"),
    }
    return pd.DataFrame(data, index=pd.Index(edges[:-1] / NS_PER_S, name="time_s"))


def _count(time_ns: IntArray, edges: IntArray) -> IntArray:
    """An instant on the last edge belongs to the last bin."""
    return np.histogram(time_ns, edges)[0].astype(np.int64)


def _of_all(measured: Measured, edges: IntArray, quantity: str) -> FloatArray:
    """Summed over engines; nothing while one is idle."""
    out = np.zeros(len(edges) - 1)
    for plans in measured.plans:
        out += band(of_plans(plans, _values(plans, quantity)), edges).mean
    return out


def _values(plans: Plans, quantity: str) -> FloatArray:
    return np.asarray(getattr(plans, quantity), np.float64)


# -- in a cell


def notebook_html(measured: Measured, metrics: Metrics) -> str:
    """Verdict and latencies: no script, no figures, a few kilobytes."""
    run = measured.result
    engines = ", ".join(dict.fromkeys(facts.name for facts in run.engines))
    lines = [summary.offered_line(metrics), summary.rates_line(metrics), summary.slo_line(metrics, run)]
    return filled(
        "run_cell.html",
        title=f"{run.trace.name} on {engines}",
        state=metrics.verdict.state.value,
        verdict=[line.removeprefix(f"{metrics.verdict.state.value}: ") for line in metrics.verdict.lines],
        lines=[summary.in_one_line(line) for line in lines],
        head=[statistic.upper() if statistic[0] == "p" else statistic for statistic in STATISTICS],
        rows=[_latency(label, metrics.spread(name)) for label, name in summary.LATENCIES],
        facts=[(label, summary.in_one_line(line)) for label, line in summary.facts(metrics)],
        notes=summary.warnings(run)[:3],
    )


def _latency(label: str, rows: list[Row]) -> tuple[str, list[str], str]:
    unit, per_s = milliseconds_or_seconds(max((row.value or 0.0 for row in rows), default=0.0))
    cells = ["n/a" if row.value is None or row.state == "unstable" else number(row.value * per_s) for row in rows]
    return f"{label} ({unit})", cells, f"{rows[0].n:,}"
