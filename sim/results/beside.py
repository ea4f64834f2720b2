"""A simulated run beside a measured one: the same fields, their difference, and whether the file can be used."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sim.results.bench import LATENCIES, STATISTICS, Bench, read_bench
from sim.results.comparison.words import signed
from sim.results.wording import clipped, number

LABELS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL per event", "e2el": "E2E"}
OTHER_WORKLOAD_RATIO = 0.05
"""Requests or tokens that differ by more are another workload."""

Line = tuple[str, float | None, float | None, str]
"""Label, measured, simulated, unit."""


class NotARun(ValueError):
    """The folder has no results of a replay."""


def beside_text(run: Path, measured: Path) -> str:
    """Raises NotARun, BadBench, OSError."""
    bench, ours = read_bench(measured), _metrics(run)
    trace = ours.get("trace", {}).get("name", "")
    rows = [("", "measured", "simulated", "difference")]
    rows += [_cells(line) for line in lines_of(bench, ours)]
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    table = [
        "  ".join(cell.ljust(width) if at == 0 else cell.rjust(width)
                  for at, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]  # fmt: skip
    out = [
        f"measured   {clipped(measured.name, 80)}",
        f"simulated  {clipped(str(trace), 60)}, state {clipped(str(ours.get('state')), 20)}",
        "",
        *table,
        "",
        *_check_lines(bench),
        *_warnings(bench, ours),
    ]
    return "\n".join(out) + "\n"


def _metrics(run: Path) -> dict[str, Any]:
    path = run / "metrics.json"
    if not path.is_file():
        raise NotARun(f"{run}: no folder of results, metrics.json is missing (tokenwork replay TRACE --out {run})")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise NotARun(f"{path}: not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("tool") != "tokenwork":
        raise NotARun(f"{path}: not written by tokenwork replay")
    return found


def lines_of(bench: Bench, ours: Mapping[str, Any]) -> Iterator[Line]:
    """Both with the definitions of `vllm bench serve`: successful requests, percentiles linear."""
    yield "completed", bench.completed, ours["completed"], ""
    yield "failed", bench.failed, ours["failed"], ""
    yield "input tokens", bench.input_tokens, ours["total_input_tokens"], ""
    yield "output tokens", bench.output_tokens, ours["total_output_tokens"], ""
    yield "duration", bench.duration_s, ours["duration"], "s"
    yield "request rate", bench.request_rate, ours["request_rate"], "req/s"
    yield "throughput", bench.completed / bench.duration_s, ours["request_throughput"], "req/s"
    tokens = None if bench.output_tokens is None else bench.output_tokens / bench.duration_s
    yield "output", tokens, ours["output_throughput"], "tok/s"
    for latency in LATENCIES:
        for statistic in STATISTICS:
            name = f"{statistic}_{latency}_ms"
            value = bench.value(name)
            if value is not None or (statistic == "mean" and latency != "itl"):
                shown = statistic.upper() if statistic[0] == "p" else statistic
                yield f"{LABELS[latency]} {shown}", value, ours.get(name), "ms"


def _cells(line: Line) -> tuple[str, str, str, str]:
    label, measured, simulated, unit = line
    difference = ""
    if measured and simulated is not None and math.isfinite(measured):
        difference = signed(simulated / measured - 1)
    return f"{label} {unit}".rstrip(), _shown(measured), _shown(simulated), difference


def _shown(value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:,}" if isinstance(value, int) else number(value)


def _check_lines(bench: Bench) -> list[str]:
    return [f"{'✓' if check.holds else '✗'} {check.text}" for check in bench.checks]


def _warnings(bench: Bench, ours: Mapping[str, Any]) -> list[str]:
    lines = []
    if not bench.usable:
        lines.append("! the measured file does not agree with itself (✗): do not calibrate from it")
    if bench.results_in_file > 1:
        lines.append(f"! {bench.results_in_file} results in the file: the last one is shown")
    pairs = {
        "requests": (bench.completed, ours["completed"]),
        "input tokens": (bench.input_tokens, ours["total_input_tokens"]),
        "output tokens": (bench.output_tokens, ours["total_output_tokens"]),
    }
    other = [name for name, (a, b) in pairs.items() if a and abs(b / a - 1) > OTHER_WORKLOAD_RATIO]
    if other:
        lines.append(f"! not the same workload: {', '.join(other)} differ by more than 5 %; differences mean little")
    if ours.get("state") != "STABLE":
        lines.append("! the simulated run has no steady state: its latencies depend on the length of the trace")
    return lines
