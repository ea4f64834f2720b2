"""A comparison on stdout: the same bytes for the same runs, whatever their number of processes; 100 columns at most."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from sim.results.comparison.comparison import Comparison, Entry, Place
from sim.results.comparison.verdicts import ONE_RUN, rate_words
from sim.results.comparison.words import LEGEND, Column, cell, columns_of, letter, versus
from sim.results.console import WIDTH
from sim.results.verdict import RunState
from sim.results.wording import clipped, count, shortened

GAP = "  "
LABEL_WIDTH = 28


def comparison_text(comparison: Comparison) -> str:
    lines = [*header(comparison), ""]
    lines += [part for line in comparison.verdicts for part in _wrapped(line)]
    for place in comparison.places:
        lines += ["", *_table(comparison, place)]
    lines += ["", *_wrapped("   ".join(LEGEND))]
    for line in comparison.why:
        lines += _wrapped(line)
    return "\n".join(lines) + "\n"


def _wrapped(line: str) -> list[str]:
    """A number and its % stay on one line."""
    whole = line.replace(" %", "\u00a0%")
    parts = textwrap.wrap(whole, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return [part.replace("\u00a0%", " %") for part in parts] or [""]


def header(comparison: Comparison) -> list[str]:
    """What is compared, and what the replications are."""
    cells = list(comparison.cells.values())
    lines = []
    traces = dict.fromkeys((cell.key.trace, *cell.trace[1:]) for cell in cells)
    for at, (name, sha256, rows) in enumerate(traces):
        digest = f" sha256:{sha256[:8]}" if sha256 else ""
        lines.append(f"{'compare' if at == 0 else '       '}  {clipped(name, 40)}{digest} {count(rows, 'row')}")
    lines += _in_rows([f"{letter(comparison, each)} {clipped(each, 60)}" for each in comparison.variants])
    profiles = ", ".join(dict.fromkeys(clipped(cell.profile, 40) for cell in cells))
    slo = next((cell.slo for cell in cells if cell.slo), "none given")
    lines.append(f"profile {profiles}   SLO {slo}")
    return [*lines, replication_words(comparison)]


def _in_rows(parts: Sequence[str]) -> list[str]:
    """As many in a line as there is room for."""
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]}   {part}" if lines[-1] else part
        lines = [*lines[:-1], longer] if len(longer) <= WIDTH else [*lines, part]
    return lines


def replication_words(comparison: Comparison) -> str:
    if comparison.plan.blocks is not None:
        return (
            f"replications: {comparison.plan.blocks} blocks of equal time of each run, a first one cut as warm-up; "
            "values are means over blocks"
        )
    if comparison.num_replications > 1:
        return f"replications: {comparison.num_replications} seeds; values are means over seeds"
    return ONE_RUN + " (--blocks 10, or --seeds 10 for a synthetic workload)"


# -- one place

CONSOLE_METRICS = ("goodput_per_s", "p99_ttft_s", "p99_tpot_s", "output_tokens_per_s")


def _table(comparison: Comparison, place: Place) -> list[str]:
    """A row per variant; metrics from the left, as many as the width has room for."""
    entries = comparison.entries(place)
    trace = f"{clipped(place.trace, 40)}  " if len({each.trace for each in comparison.places}) > 1 else ""
    scale = f" (rate x{place.rate_scale:g})" if place.rate_scale != 1 else ""
    columns: list[list[str]] = [["", "", *(_label(comparison, entry) for entry in entries)]]
    for column in columns_of(comparison):
        more = _columns(comparison, place, entries, column)
        if column.metric in CONSOLE_METRICS and _width([*columns, *more]) <= WIDTH:
            columns += more
    aligned = [_aligned(column, left=at % 2 == 0) for at, column in enumerate(columns)]
    rows = [GAP.join(row).rstrip() for row in zip(*aligned, strict=True)]
    return [f"{trace}{rate_words(comparison, place)}{scale}", *rows]


def _aligned(texts: Sequence[str], *, left: bool) -> list[str]:
    width = max(map(len, texts))
    return [text.ljust(width) if left else text.rjust(width) for text in texts]


def _label(comparison: Comparison, entry: Entry) -> str:
    mark = "" if entry.state is RunState.STABLE else f" {entry.state.value}"
    room = LABEL_WIDTH - 2 - len(mark)
    return f"{letter(comparison, entry.variant)} {shortened(entry.variant, room)}{mark}"


def _columns(comparison: Comparison, place: Place, entries: Sequence[Entry], column: Column) -> list[list[str]]:
    values = [column.label, column.unit, *(cell(entry, column) for entry in entries)]
    marks = ["vs A", "", *(versus(comparison, place, entry, column.metric) for entry in entries)]
    return [values, marks]


def _width(columns: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) for column in columns) + len(GAP) * (len(columns) - 1)
