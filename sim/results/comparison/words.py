"""How figures of a comparison are written: cells, differences, intervals and the marks beside them."""

from __future__ import annotations

from dataclasses import dataclass

from sim.results.comparison.comparison import Comparison, Entry, Place
from sim.results.comparison.replications import CONFIDENCE, SMALL_RATIO, Difference
from sim.results.metrics import Row
from sim.results.wording import number, percent


@dataclass(frozen=True, slots=True)
class Column:
    """A metric in tables of comparisons."""

    metric: str
    label: str
    unit: str
    per_unit: float = 1.0
    """How many of the unit one of the catalog's is."""


COLUMNS = (
    Column("goodput_per_s", "goodput", "req/s"),
    Column("slo_met_offered_ratio", "SLO met", "offered"),
    Column("p99_ttft_s", "TTFT P99", "ms", 1000),
    Column("p99_tpot_s", "TPOT P99", "ms", 1000),
    Column("output_tokens_per_s", "output", "tok/s"),
    Column("mean_ttft_s", "TTFT mean", "ms", 1000),
    Column("mean_tpot_s", "TPOT mean", "ms", 1000),
    Column("p99_e2e_s", "E2E P99", "ms", 1000),
)
NEED_SLO = frozenset({"goodput_per_s", "slo_met_offered_ratio"})

LEGEND = (
    "~ the interval contains 0",
    "! worse than A",
    "few: too few requests for this percentile",
    "n/a no steady state, or nothing to measure",
    f"[..] {100 * CONFIDENCE:g} % over replications",
)


def columns_of(comparison: Comparison) -> list[Column]:
    return [column for column in COLUMNS if comparison.has_slo or column.metric not in NEED_SLO]


def letter(comparison: Comparison, variant: str) -> str:
    return chr(ord("A") + comparison.variants.index(variant))


def signed(ratio: float) -> str:
    """+7.9 %, -0.6 %, +33 %, +1,240 %; 0 % for what would be written so."""
    shown = f"{100 * ratio:+.0f}" if abs(ratio) >= 0.0995 else f"{100 * ratio:+.1f}"
    if abs(ratio) >= 9.995:
        shown = f"{100 * ratio:+,.0f}"
    return "0 %" if float(shown.replace(",", "")) == 0 else f"{shown} %"


def interval(found: Difference) -> str:
    """[+6.8, +9.1]; empty without one."""
    if found.low is None or found.high is None:
        return ""
    digits = 0 if max(abs(found.low), abs(found.high)) >= 0.995 else 1
    low, high = (f"{100 * end:+,.{digits}f}" for end in (found.low, found.high))
    return f"[{low}, {high}]".replace("-0.0", "+0.0")


def worse(found: Difference, row: Row) -> bool:
    """By more than chance, or, of single runs, by more than matters."""
    if found.ratio is None or row.better is None or signed(found.ratio) == "0 %":
        return False
    if (found.ratio < 0) != (row.better == "higher"):
        return False
    return bool(found.shown) if found.shown is not None else abs(found.ratio) >= SMALL_RATIO


def versus(comparison: Comparison, place: Place, entry: Entry, metric: str) -> str:
    """`+7.9 % [+6.8, +9.1] !`, `~`, or nothing for the base and for what cannot be compared."""
    found = comparison.difference(place, entry.variant, metric)
    if entry.variant == comparison.base or found is None:
        return ""
    if found.ratio is None:
        return "A is 0"
    if found.shown is False:
        return f"~ {interval(found)}"
    parts = [signed(found.ratio), interval(found), "!" if worse(found, entry.row(metric)) else ""]
    return " ".join(part for part in parts if part)


def cell(entry: Entry, column: Column) -> str:
    """A value as it stands in a table: `412`, `412 few`, `n/a`, `inf`."""
    row, value = entry.row(column.metric), entry.mean(column.metric)
    if row.state == "inf":
        return "inf"
    if value is None:
        return "n/a"
    shown = percent(value) if row.unit == "ratio" else number(value * column.per_unit)
    return shown + (" few" if entry.few(column.metric) else "")
