"""What stands in a report, as plain data for the templates: the same content for HTML and Markdown."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from typing import Any

from sim.results import summary
from sim.results.figures.album import album
from sim.results.figures.drawing import Data, Picture
from sim.results.measure import Measured, targets
from sim.results.metrics import STATISTICS, Metrics, Row
from sim.results.trust import left_out_rows, trust_lines
from sim.results.verdict import RunState
from sim.results.wording import count, milliseconds_or_seconds, number, percent

SLO_SHARE = 0.99
"""A target is held (✓) if at least this share of the offered requests meets it."""

LONGEST_SCENARIO_CHARS = 20_000

DEFINITIONS = (
    ("TTFT", "first token − arrival; waiting in the queue is part of it"),
    ("TPOT", "(E2E − TTFT) / (output tokens − 1) per request; not defined for one token, which counts as 0 for SLOs"),
    ("ITL", "gap between consecutive outputs of a request, pooled over requests: per event, and per token (tokens that "
            "come together have gaps of 0)"),
    ("E2E", "last token − arrival"),
    ("queue", "arrival − first admission; time in the queue after a preemption is `requeue`"),
    ("goodput", "finished requests that meet every target (equality passes), divided by the duration; requests that "
                "did not finish never meet one"),
    ("duration", "first arrival to last terminal event"),
    ("KV used", "blocks that live requests reference, of all blocks; the mean is over time, idle time included"),
    ("waste", "room in the last block of requests with output, of all the room in the blocks that their KV takes, over "
              "their output events"),
    ("spread", "standard deviation of the steps' times"),
    ("Jain's index", "(Σx)² / (n Σx²) over clients, x = tokens delivered / tokens asked for: 1 if all get the same "
                     "share, 1/n if one gets everything (Jain, Chiu, Hawe 1984)"),
    ("token-work", "work of a step in decode tokens of the profile's reference; equal weights where no profile says"),
    ("prefill starved", "steps of decodes only that used up the budget while the head of the queue waited for work"),
    ("few", "fewer than 10 requests are expected beyond this percentile"),
    ("UNSTABLE", "arrivals in both later quarters of the arrivals' time see more than 2x the waiting requests of the "
                 "first half, and more than 4"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SloLine:
    held: bool
    text: str


@dataclass(frozen=True, slots=True)
class Shown:
    """A figure, or why there is none."""

    title: str
    finding: str
    source: str
    """A data URI; empty if it was left out."""
    data: Data


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    state: str
    stable: bool
    lines: tuple[str, ...]
    """What is not as it should be."""
    actions: tuple[str, ...]
    slo: tuple[SloLine, ...]
    slo_summary: str
    offered: str
    rates: str
    head: tuple[str, ...]
    latencies: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    """Under the latency table."""
    facts: tuple[tuple[str, str], ...]
    figures: tuple[Shown, ...]
    trust: tuple[str, ...]
    rows_left_out: tuple[str, ...]
    source: tuple[tuple[str, str], ...]
    """What was run: trace, engine, profile, seed."""
    scenario: str
    """JSON to run it again; empty if it is too long."""
    definitions: tuple[tuple[str, str], ...]
    metrics: tuple[tuple[str, ...], ...]
    reasons: tuple[tuple[str, ...], ...]
    """What happened, why, and how often."""


def page(measured: Measured, metrics: Metrics) -> Page:
    run, judged = measured.result, metrics.verdict
    latencies = [_latency_cells(label, metrics.spread(name)) for label, name in summary.LATENCIES]
    return Page(
        title=_title(measured, metrics),
        state=judged.state.value,
        stable=judged.state is RunState.STABLE,
        lines=tuple(_sentence(line.removeprefix(f"{judged.state.value}: ")) for line in judged.lines),
        actions=tuple(_actions(metrics)),
        slo=tuple(_slo_lines(measured, metrics)),
        slo_summary=summary.in_one_line(summary.slo_line(metrics, run)),
        offered=summary.offered_line(metrics),
        rates=summary.in_one_line(summary.rates_line(metrics)),
        head=("", *(_heading(statistic) for statistic in STATISTICS), "n"),
        latencies=tuple(latencies),
        notes=tuple(_latency_notes(metrics)),
        facts=tuple((label, summary.in_one_line(line)) for label, line in summary.facts(metrics)),
        figures=tuple(shown(one) for one in album(measured, metrics)),
        trust=tuple(trust_lines(measured)),
        rows_left_out=tuple(left_out_rows(measured)),
        source=tuple(_source(measured)),
        scenario=_scenario(run.scenario),
        definitions=DEFINITIONS,
        metrics=tuple(_metric_cells(row) for row in metrics.rows.values()),
        reasons=tuple(
            (what.replace("_", " "), reason, f"{times:,}")
            for what, counts in metrics.reasons.items()
            for reason, times in counts.items()
        ),
    )


def _title(measured: Measured, metrics: Metrics) -> str:
    run = measured.result
    engines = ", ".join(dict.fromkeys(facts.name for facts in run.engines))
    mark = "" if metrics.verdict.state is RunState.STABLE else f"{metrics.verdict.state.value}: "
    return f"{mark}{run.trace.name} on {engines}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _heading(statistic: str) -> str:
    return statistic.upper() if statistic[0] == "p" else statistic


def shown(one: Picture) -> Shown:
    """A figure as it stands in a page."""
    return Shown(one.title, one.finding, _uri(one.svg) if one.svg else "", one.data)


def _uri(svg: str) -> str:
    return "data:image/svg+xml;base64," + b64encode(svg.encode()).decode()


# -- the verdict


def _slo_lines(measured: Measured, metrics: Metrics) -> list[SloLine]:
    lines = []
    for name, target_s in targets(measured.result.slo).items():
        label = name.removesuffix("_s").upper()
        met = metrics.value(f"slo_{name.removesuffix('_s')}_met_offered_ratio")
        if met is not None:
            share = f"met by {percent(met)} of offered ({percent(SLO_SHARE)} wanted)"
            text = f"{label} ≤ {_time(target_s)}: {share}{_margin(metrics, name, target_s)}"
            lines.append(SloLine(met >= SLO_SHARE, text))
    return lines


def _margin(metrics: Metrics, name: str, target_s: float) -> str:
    """Where the P99 of finished requests stands beside the target."""
    row = metrics[f"p99_{name}"]
    if row.value is None or row.state == "unstable":
        return "; P99 n/a"
    times = row.value / target_s
    away = f"{percent(abs(1 - times))} {'below' if times <= 1 else 'above'} the target"
    few = f" (few: n={row.n:,})" if row.state == "few" else ""
    return f"; P99 of finished {_time(row.value)}{few}, " + (f"{number(times)} times the target" if times > 2 else away)


def _time(seconds: float) -> str:
    unit, per_s = ("s", 1.0) if seconds >= 1 else ("ms", 1000.0)
    return f"{seconds * per_s:,.4g} {unit}" if seconds * per_s < 1000 else f"{number(seconds * per_s)} {unit}"


def _actions(metrics: Metrics) -> list[str]:
    """What to do next about each warning."""
    judged = metrics.verdict
    actions = []
    if judged.trend.unstable:
        actions.append("Lower the load (--rate-scale 0.8) or add capacity until the backlog stops growing; then read "
                       "latencies.")  # fmt: skip
    if judged.partial:
        actions.append("Run it to its end before comparing it with anything.")
    if any(row.state == "few" for row in metrics.spread("ttft_s")):
        actions.append("Percentiles marked “few” need a longer trace: P99 from 1,000 requests.")
    return actions


# -- tables


def _latency_cells(label: str, rows: list[Row]) -> tuple[str, ...]:
    longest_s = max((row.value for row in rows if row.value is not None), default=0.0)
    unit, per_s = milliseconds_or_seconds(longest_s)
    if rows[0].state == "n/a":
        return f"{label} ({unit})", *(["n/a"] * len(rows)), "0"
    return f"{label} ({unit})", *(_cell(row, per_s) for row in rows), f"{rows[0].n:,}"


def _cell(row: Row, per_s: float) -> str:
    if row.state == "unstable" or row.value is None:
        return "n/a"
    return number(row.value * per_s) + (f" (few: n={row.n:,})" if row.state == "few" else "")


def _latency_notes(metrics: Metrics) -> list[str]:
    """Why cells are empty, and what happened to those who are not in the table."""
    notes = [
        f"{label}: n/a ({rows[0].note})"
        for label, name in summary.LATENCIES
        if (rows := metrics.spread(name))[0].state == "n/a"
    ]
    never = summary.never_served(metrics)
    return notes + ([never] if never else [])


def _metric_cells(row: Row) -> tuple[str, ...]:
    shown = "n/a" if row.value is None else f"{row.value:,}" if isinstance(row.value, int) else number(row.value)
    better = {"lower": "lower is better", "higher": "higher is better", None: ""}[row.better]
    return row.name, shown, row.unit, f"{row.n:,}", row.population or "steps", row.state, better


# -- what was run


def _source(measured: Measured) -> list[tuple[str, str]]:
    run, trace = measured.result, measured.result.trace
    rows: list[tuple[str, str]] = [("trace", f"{trace.name} ({trace.format}, {count(len(trace), 'row')})")]
    if trace.sha256:
        rows.append(("trace sha256", trace.sha256))
    for facts in run.engines:
        budget = "no step budget" if facts.step_budget is None else f"step budget {facts.step_budget:,}"
        slots = f"{facts.max_running:,} slots" if facts.max_running < 1 << 50 else "no slot limit"
        cache = "prefix cache" if facts.prefix_caching else "no prefix cache"
        pool = f"{facts.total_blocks:,} KV blocks of {facts.block_tokens}"
        rows.append(("engine", f"{facts.name}: {pool}, {slots}, {budget}, {cache}"))
    return [*rows, ("profile", run.profile_name), ("seed", str(run.scenario.get("seed", 0)))]


def _scenario(scenario: dict[str, Any]) -> str:
    text = json.dumps(scenario, indent=1)
    return text if len(text) <= LONGEST_SCENARIO_CHARS else ""
