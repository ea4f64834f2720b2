"""The result as one JSON document: `vllm bench serve`'s names at the top, our own metrics in a block of their own."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from sim.results.arrays import IntArray
from sim.results.catalog import SINGLES, SPREADS, Spread
from sim.results.clients import client_rows
from sim.results.measure import NS_PER_S, Measured
from sim.results.metrics import PERCENTS, Metrics
from sim.results.percentiles import Sample
from sim.results.tokens import events_in_time

SCHEMA_VERSION = 1


def metrics_json(measured: Measured, metrics: Metrics) -> str:
    """Deterministic; every number is finite, what has no finite value is null and says why in its `state`."""
    return json.dumps(document(measured, metrics), indent=2, allow_nan=False) + "\n"


def document(measured: Measured, metrics: Metrics) -> dict[str, Any]:
    run = measured.result
    trace = run.trace
    return {
        "tool": "tokenwork",
        "schema_version": SCHEMA_VERSION,
        "state": metrics.verdict.state.value,
        "warnings": list(metrics.verdict.lines),
        **serve_fields(measured, metrics),
        "slo": asdict(run.slo),
        "metrics": {name: row.as_json() for name, row in metrics.rows.items()},
        "reasons": metrics.reasons,
        "clients": [asdict(row) for row in client_rows(measured)],
        "trace": {
            "name": trace.name,
            "format": trace.format,
            "sha256": trace.sha256,
            "rows": len(trace),
            "bad_rows": len(trace.bad_rows),
            "failed_rows": len(trace.failed_rows),
        },
        "engines": [asdict(facts) for facts in run.engines],
        "profile": run.profile_name,
        "notes": list(run.notes),
        "scenario": run.scenario,
    }


def serve_fields(measured: Measured, metrics: Metrics) -> dict[str, Any]:
    """Fields of vLLM's benchmark with its definitions: of successful requests, in ms; `date` is never written.

    `request_rate` is what was offered per second; `failed` counts every end but a finish.
    """
    return {
        "backend": "tokenwork",
        "model_id": measured.result.profile_name,
        "burstiness": None,
        "max_concurrency": None,
        **{single.serve: metrics.value(single.name) for single in SINGLES if single.serve},
        "max_output_tokens_per_s": busiest_second_events(measured),
        "max_concurrent_requests": max_concurrent(
            measured.result.trace.arrival_ns[measured.served], measured.tokens.last_ns[measured.served]
        ),
        **{
            name: value
            for spread in SPREADS
            if spread.serve
            for name, value in _latencies(spread, spread.sample(measured), metrics).items()
        },
    }


def _latencies(spread: Spread, sample: Sample, metrics: Metrics) -> dict[str, float | None]:
    def ms(statistic: str) -> float | None:
        value = metrics.value(f"{statistic}_{spread.name}")
        return None if value is None else 1000 * value

    name = spread.serve
    fields = {f"mean_{name}_ms": ms("mean"), f"median_{name}_ms": ms("p50")}
    fields[f"std_{name}_ms"] = 1000 * sample.std() if sample.n else None
    return fields | {f"p{percent:g}_{name}_ms": ms(f"p{percent:g}") for percent in PERCENTS}


def busiest_second_events(measured: Measured) -> int | None:
    """Output events of finished requests in the fullest second, seconds counted from the first arrival."""
    table = measured.spans
    table = table.pick(measured.served[table.row])
    time_ns, events = events_in_time(table, measured.result.logs)
    if not events.sum():
        return None
    happened = events > 0
    second = (time_ns[happened] - measured.start_ns) // NS_PER_S
    return int(np.bincount(second, weights=events[happened]).max())


def max_concurrent(from_ns: IntArray, until_ns: IntArray) -> int:
    """Most requests in the system at once; who leaves at an instant is gone when another comes in it."""
    started, ended = np.sort(from_ns), np.sort(until_ns)
    inside = np.arange(1, len(started) + 1) - np.searchsorted(ended, started, side="right")
    return int(inside.max(initial=0))
