"""The result on stdout: the same bytes for the same run, at most 100 columns, colours on terminals only."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from typing import TextIO

from sim.results import summary
from sim.results.measure import Measured
from sim.results.metrics import STATISTICS, Metrics, Row, compute
from sim.results.run import RunResult
from sim.results.trust import outside_range
from sim.results.verdict import RunState
from sim.results.wording import clipped, count, milliseconds_or_seconds, number

WIDTH = 100
HEADINGS = (*(statistic.upper() if statistic[0] == "p" else statistic for statistic in STATISTICS), "n")
LABEL_WIDTH = 18
GAP = "   "
MOST_NOTES_EACH = 2


def print_result(run: RunResult | Measured, file: TextIO | None = None) -> None:
    """Write the summary of a run. `file` is stdout by default; characters it cannot encode are spelled out."""
    from rich.console import Console
    from rich.text import Text

    out = file or sys.stdout
    console = Console(file=out, width=WIDTH, highlight=False, markup=False, emoji=False)
    encoding = getattr(out, "encoding", None) or "utf-8"
    for line in result_text(run).splitlines():
        plain = line.encode(encoding, "backslashreplace").decode(encoding)
        console.print(Text(plain, style=_style(plain)), no_wrap=True, overflow="ignore", crop=False)


def _style(line: str) -> str:
    if line.startswith(RunState.STABLE.value):
        return "bold green"
    if line.startswith(tuple(state.value + ":" for state in RunState)):
        return "bold red"
    return "yellow" if line.startswith("! ") else ""


def result_text(run: RunResult | Measured) -> str:
    """What `print_result` writes, as plain text."""
    measured = run if isinstance(run, Measured) else Measured(run)
    metrics = compute(measured)
    result = measured.result
    lines = [*_header(result), *_verdict(metrics), summary.rates_line(metrics), summary.slo_line(metrics, result), ""]
    lines += [*_latency_table(metrics), ""]
    lines += [f"{label.ljust(LABEL_WIDTH)} {line}" for label, line in summary.facts(metrics)]
    lines += [f"! {line}" for line in (*outside_range(measured), *_gathered(summary.warnings(result)))]
    return "\n".join(wrapped for line in lines for wrapped in _wrap(line)) + "\n"


def _header(run: RunResult) -> list[str]:
    trace = run.trace
    digest = f" sha256:{trace.sha256[:8]}" if trace.sha256 else ""
    engines = ", ".join(dict.fromkeys(facts.name for facts in run.engines))
    first = (
        f"replay  {clipped(trace.name, 40)}{digest} {count(len(trace), 'row')}",
        f"engine {clipped(engines, 30)}",
    )
    second = (f"profile {clipped(run.profile_name, 40)}", f"seed {run.scenario.get('seed', 0)}")
    line = GAP.join([*first, *second])
    return [line] if len(line) <= WIDTH else [GAP.join(first), " " * len("replay  ") + GAP.join(second)]


def _verdict(metrics: Metrics) -> list[str]:
    judged = metrics.verdict
    offered = summary.offered_line(metrics)
    if judged.state is RunState.STABLE:
        return [f"STABLE   {offered}", *(f"! {line}" for line in judged.lines)]
    return [*judged.lines, offered]


def _wrap(line: str) -> list[str]:
    """A long line in several, indented; aligned lines fit already and keep their spaces."""
    if len(line) <= WIDTH:
        return [line]
    indent = " " * (LABEL_WIDTH + 1) if line[:LABEL_WIDTH].strip() in summary.FACTS else "  "
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _gathered(notes: list[str]) -> list[str]:
    """Notes as they are, but many about one thing (`profile X: ...`) as a number: the report has them all."""
    about = Counter(note.partition(": ")[0] for note in notes)
    lines = []
    for note in notes:
        subject = note.partition(": ")[0]
        if about[subject] <= MOST_NOTES_EACH:
            lines.append(note)
        elif (line := f"{subject}: {about[subject]} assumptions (listed in the report, --out)") not in lines:
            lines.append(line)
    return lines


# -- the latency table


def _latency_table(metrics: Metrics) -> list[str]:
    rows = [_latency_row(label, metrics.spread(name)) for label, name in summary.LATENCIES]
    columns = list(zip(HEADINGS, *(cells for _, cells in rows if len(cells) == len(HEADINGS)), strict=True))
    widths = [max(8, *(len(cell) for cell in column)) + 2 for column in columns]

    def line(label: str, cells: list[str]) -> str:
        if len(cells) == 1:
            return f"{label.ljust(LABEL_WIDTH)} {cells[0]}"
        return label.ljust(LABEL_WIDTH) + "".join(c.rjust(width) for c, width in zip(cells, widths, strict=True))

    table = [line("latency, finished", list(HEADINGS)), *(line(label, cells) for label, cells in rows)]
    if any(cell.endswith("few") for _, cells in rows for cell in cells):
        table.append(summary.FEW)
    never = summary.never_served(metrics)
    return [*table, *([never] if never else [])]


def _latency_row(label: str, row: list[Row]) -> tuple[str, list[str]]:
    longest_s = max((cell.value for cell in row if cell.value is not None), default=0.0)
    unit, per_s = milliseconds_or_seconds(longest_s)
    if row[0].state == "n/a":
        return f"{label:<15} {unit}", [summary.value(row[0])]
    return f"{label:<15} {unit}", [*(_cell(cell, per_s) for cell in row), f"{row[0].n:,}"]


def _cell(row: Row, per_s: float) -> str:
    if row.state == "unstable" or row.value is None:
        return "n/a"
    return number(row.value * per_s) + (" few" if row.state == "few" else "")
