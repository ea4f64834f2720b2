"""The result of a comparison: runs by trace, rate and variant, and the differences between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sim.results.comparison.cell import Cell
from sim.results.comparison.replications import Difference, difference
from sim.results.metrics import CellState, Row
from sim.results.percentiles import enough_for
from sim.results.verdict import RunState
from sim.results.wording import visible
from sim.variants import ComparePlan, Key

if TYPE_CHECKING:
    import pandas as pd

    from sim.results.figures.comparison import ComparisonPlots

GRAVEST_FIRST = (RunState.STALLED, RunState.PARTIAL, RunState.NOTHING_SERVED, RunState.UNSTABLE, RunState.STABLE)
WORST_FIRST: tuple[CellState, ...] = ("n/a", "unstable", "inf", "partial", "few", "ok")


@dataclass(frozen=True, slots=True)
class Place:
    """Where variants meet the same requests."""

    trace: str
    rate_scale: float


@dataclass(frozen=True, slots=True)
class Entry:
    """A variant at one place: a run per seed, or one whose blocks are the replications."""

    variant: str
    cells: Mapping[int, Cell]
    """By seed; never empty."""

    @property
    def first(self) -> Cell:
        return next(iter(self.cells.values()))

    @property
    def state(self) -> RunState:
        return min((cell.state for cell in self.cells.values()), key=GRAVEST_FIRST.index)

    def row(self, metric: str) -> Row:
        """Of the run (of those of several seeds) that says least."""
        rows = [cell.rows[metric] for cell in self.cells.values()]
        return min(rows, key=lambda row: WORST_FIRST.index(row.state))

    def values(self, metric: str, seeds: Sequence[int]) -> list[float | None]:
        """Replication by replication; blocks of a run without a steady state are none."""
        blocks = self.first.blocks.get(metric) if self.state is RunState.STABLE else None
        return list(blocks) if blocks is not None else self.by_run(metric, seeds)

    def by_run(self, metric: str, seeds: Sequence[int]) -> list[float | None]:
        return [self.cells[seed].rows[metric].value for seed in seeds]

    def few(self, metric: str) -> bool:
        """Whether a replication has too few requests for this percentile."""
        row, blocks = self.row(metric), len(self.first.blocks.get(metric, ())) if self.state is RunState.STABLE else 0
        statistic = metric.partition("_")[0]
        if not blocks or not statistic[1:].isdigit():
            return row.state == "few"
        return not enough_for(float(statistic[1:]), row.n // (blocks + 1))

    def mean(self, metric: str) -> float | None:
        """Over replications; None where one of them has no value, or the value means nothing."""
        values = self.values(metric, list(self.cells))
        known = [value for value in values if value is not None]
        if len(known) < len(values) or self.row(metric).state in ("n/a", "unstable", "inf"):
            return None
        return math.fsum(known) / len(known)


@dataclass(frozen=True, repr=False)
class Comparison:
    plan: ComparePlan
    keys: tuple[Key, ...]
    """Of all runs asked for."""
    cells: Mapping[Key, Cell]
    """Of those that were done, in the same order."""

    # -- what there is

    @cached_property
    def places(self) -> list[Place]:
        return list(dict.fromkeys(Place(key.trace, key.rate_scale) for key in self.cells))

    @cached_property
    def variants(self) -> list[str]:
        """All that were asked for; the first is the base."""
        return list(dict.fromkeys(key.variant for key in self.keys))

    @property
    def base(self) -> str:
        return self.variants[0]

    @property
    def num_missing(self) -> int:
        """Runs that were not done (Ctrl-C)."""
        return len(self.keys) - len(self.cells)

    @property
    def num_replications(self) -> int:
        return self.plan.blocks or max(1, len(self.plan.seeds))

    @cached_property
    def has_slo(self) -> bool:
        return any(cell.slo for cell in self.cells.values())

    def entries(self, place: Place) -> list[Entry]:
        """Variants in order; those without a run are left out."""
        found = [self.entry(place, variant) for variant in self.variants]
        return [entry for entry in found if entry is not None]

    def entry(self, place: Place, variant: str) -> Entry | None:
        key = (place.trace, place.rate_scale, variant)
        cells = {cell.key.seed: cell for cell in self.cells.values()
                 if (cell.key.trace, cell.key.rate_scale, cell.key.variant) == key}  # fmt: skip
        return Entry(variant, cells) if cells else None

    def offered_per_s(self, place: Place) -> float | None:
        """Of the requests, not of the runs: the same for all variants."""
        values = [entry.mean("offered_per_s") for entry in self.entries(place)]
        return next((value for value in values if value is not None), None)

    def difference(self, place: Place, variant: str, metric: str) -> Difference | None:
        """Of a variant from the base; None where there is nothing to compare."""
        base, other = self.entry(place, self.base), self.entry(place, variant)
        if base is None or other is None or base.mean(metric) is None or other.mean(metric) is None:
            return None
        seeds = [seed for seed in base.cells if seed in other.cells]
        a, b = base.values(metric, seeds), other.values(metric, seeds)
        if len(a) != len(b):  # blocks of one of them only
            a, b = base.by_run(metric, seeds), other.by_run(metric, seeds)
        return difference(a, b) if seeds else None

    # -- for people

    @property
    def verdicts(self) -> list[str]:
        """What came out, one sentence each."""
        from sim.results.comparison.verdicts import verdict_lines

        return verdict_lines(self)

    @property
    def why(self) -> list[str]:
        """What is different inside: what was waited for, preempted, rejected, computed again."""
        from sim.results.comparison.why import why_lines

        return why_lines(self)

    def report(self, folder: Path | str) -> None:
        """Write compare.html, compare.md, compare.json and cells.parquet. An existing folder is replaced."""
        from sim.results.comparison.report import write_comparison

        write_comparison(self, Path(folder))

    def __repr__(self) -> str:
        return f"<comparison of {', '.join(visible(each) for each in self.variants)}: {len(self.cells):,} runs>"

    def _repr_html_(self) -> str:
        from sim.results.comparison.page import notebook_html

        return notebook_html(self)

    # -- for programs

    @cached_property
    def table(self) -> pd.DataFrame:
        """Index: trace, rate_scale, variant, metric. Missing is NaN, never 0; differences are ratios of the base's."""
        from sim.results.comparison.tables import long_table

        return long_table(self)

    def pick(self, *metrics: str) -> pd.DataFrame:
        """Some metrics as columns, a row per variant (and trace and rate, where there are several), `state` first."""
        from sim.results.comparison.tables import wide_table

        return wide_table(self, metrics)

    @property
    def pareto(self) -> pd.DataFrame:
        """Every variant and rate in the two trade-offs, and whether another one is better in both figures of it."""
        from sim.results.comparison.frontier import pareto_table

        return pareto_table(self)

    def changed(self) -> pd.DataFrame:
        """How often each reason was counted, by trace, rate and variant: ends, and steps that left somebody waiting."""
        from sim.results.comparison.tables import reason_table

        return reason_table(self)

    @property
    def plot(self) -> ComparisonPlots:
        """Figures: `.goodput()`, `.pareto()`, `.scatter()`, `.cdf("ttft")`; each returns matplotlib's Axes."""
        from sim.results.figures.comparison import ComparisonPlots

        return ComparisonPlots(self)
