"""What stands in a comparison's report, as plain data for the templates: the same for HTML and Markdown."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sim.results.comparison.album import album
from sim.results.comparison.comparison import Comparison, Place
from sim.results.comparison.console import replication_words
from sim.results.comparison.export import portable_plan, portable_scenario
from sim.results.comparison.replications import METHOD
from sim.results.comparison.verdicts import rate_words
from sim.results.comparison.words import LEGEND, cell, columns_of, letter, versus
from sim.results.page import Shown, shown
from sim.results.render import filled
from sim.results.verdict import RunState
from sim.results.wording import count

LONGEST_JSON_CHARS = 40_000


@dataclass(frozen=True, slots=True)
class PlaceTable:
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class VariantLine:
    letter: str
    name: str
    scenario: str
    """JSON to repeat one of its runs; empty if it is too long."""


@dataclass(frozen=True, slots=True)
class ComparePage:
    title: str
    partial: bool
    verdicts: tuple[str, ...]
    replications: str
    method: str
    """How intervals were made; empty without any."""
    variants: tuple[VariantLine, ...]
    tables: tuple[PlaceTable, ...]
    legend: tuple[str, ...]
    why: tuple[str, ...]
    figures: tuple[Shown, ...]
    notes: tuple[str, ...]
    source: tuple[tuple[str, str], ...]
    plan: str
    """JSON to repeat all of it; empty if it is too long."""


def page(comparison: Comparison) -> ComparePage:
    return ComparePage(
        title=title(comparison),
        partial=bool(comparison.num_missing),
        verdicts=tuple(comparison.verdicts),
        replications=replication_words(comparison),
        method=f"Intervals: {METHOD}." if comparison.num_replications > 1 else "",
        variants=tuple(_variants(comparison)),
        tables=tuple(place_table(comparison, place) for place in comparison.places),
        legend=LEGEND,
        why=tuple(comparison.why),
        figures=tuple(shown(one) for one in album(comparison)),
        notes=tuple(_notes(comparison)),
        source=tuple(_source(comparison)),
        plan=_short(json.dumps(portable_plan(comparison), indent=1)),
    )


def title(comparison: Comparison) -> str:
    traces = ", ".join(dict.fromkeys(place.trace for place in comparison.places))
    name = comparison.plan.name or f"{count(len(comparison.variants), 'variant')} on {traces}"
    return ("PARTIAL: " if comparison.num_missing else "") + name


def place_table(comparison: Comparison, place: Place) -> PlaceTable:
    """A row per variant; each metric with its difference from the base."""
    columns = columns_of(comparison)
    scale = f" (rate x{place.rate_scale:g})" if place.rate_scale != 1 else ""
    head = ["", "state"]
    for column in columns:
        head += [f"{column.label} ({column.unit})", "vs A"]
    rows = []
    for entry in comparison.entries(place):
        row = [f"{letter(comparison, entry.variant)} {entry.variant}", entry.state.value]
        for column in columns:
            row += [cell(entry, column), versus(comparison, place, entry, column.metric)]
        rows.append(tuple(row))
    return PlaceTable(f"{place.trace}: {rate_words(comparison, place)} offered{scale}", tuple(head), tuple(rows))


def _variants(comparison: Comparison) -> list[VariantLine]:
    first = {cell.key.variant: cell for cell in reversed(list(comparison.cells.values()))}
    return [
        VariantLine(letter(comparison, name), name, _short(json.dumps(portable_scenario(first[name]), indent=1)))
        for name in comparison.variants
        if name in first
    ]


def _notes(comparison: Comparison) -> list[str]:
    """Assumptions, each once, with whose they are where not everybody's."""
    by_note: dict[str, list[str]] = {}
    for each in comparison.cells.values():
        for note in each.notes:
            letters = by_note.setdefault(note, [])
            if (sign := letter(comparison, each.key.variant)) not in letters:
                letters.append(sign)
    everybody = len(comparison.variants)
    return [note if len(of) == everybody else f"{', '.join(of)}: {note}" for note, of in by_note.items()]


def _source(comparison: Comparison) -> list[tuple[str, str]]:
    cells = list(comparison.cells.values())
    rows: list[tuple[str, str]] = []
    for name, sha256, length in dict.fromkeys((each.key.trace, *each.trace[1:]) for each in cells):
        rows.append(("trace", f"{name} ({count(length, 'row')}{', sha256 ' + sha256 if sha256 else ''})"))
    rows += [("profile", profile) for profile in dict.fromkeys(each.profile for each in cells)]
    rows.append(("SLO", next((each.slo for each in cells if each.slo), "none given")))
    rows.append(("seeds", ", ".join(str(seed) for seed in dict.fromkeys(each.scenario["seed"] for each in cells))))
    return rows


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_JSON_CHARS else ""


def notebook_html(comparison: Comparison) -> str:
    """Verdicts and tables for a notebook's cell: no script, no figures."""
    return filled(
        "compare_cell.html",
        verdicts=comparison.verdicts,
        tables=[place_table(comparison, place) for place in comparison.places],
        legend=LEGEND,
        unstable=[RunState.UNSTABLE.value],
    )
