"""Up to which of the rates tried each variant holds the SLO, replication by replication."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sim.results.comparison.comparison import Comparison, Place
from sim.results.comparison.replications import Difference, difference
from sim.results.verdict import RunState

SLO_SHARE = 0.99
"""A run holds the SLO if at least this share of the offered requests meets every target, and its backlog is steady."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Offered rates, in requests/s."""

    by_replication: tuple[float | None, ...]
    """The highest rate such that it and all lower ones hold; None where not even the lowest does."""
    lowest: float
    highest: float
    """Of the rates tried."""

    @property
    def mean(self) -> float | None:
        """None where there are replications that hold at no rate."""
        known = [rate for rate in self.by_replication if rate is not None]
        return math.fsum(known) / len(known) if len(known) == len(self.by_replication) and known else None

    @property
    def at_every_rate(self) -> bool:
        return all(rate == self.highest for rate in self.by_replication)

    def versus(self, base: Capacity) -> Difference | None:
        return difference(base.by_replication, self.by_replication)


def capacities(comparison: Comparison, trace: str) -> dict[str, Capacity]:
    """Of each variant; nothing where rates are not known or not all runs were done."""
    places = sorted((p for p in comparison.places if p.trace == trace), key=lambda place: place.rate_scale)
    rates = [comparison.offered_per_s(place) for place in places]
    known = [rate for rate in rates if rate is not None]
    if len(known) < len(rates) or not known:
        return {}
    found = {}
    for variant in comparison.variants:
        held = [_held(comparison, place, variant) for place in places]
        if all(held):
            many = max(len(each) for each in held)
            columns = zip(*(each if len(each) == many else each * many for each in held), strict=True)
            by_replication = tuple(_highest(known, column) for column in columns)
            found[variant] = Capacity(by_replication, known[0], known[-1])
    return found


def _held(comparison: Comparison, place: Place, variant: str) -> list[bool]:
    """By replication; blocks of one run have its state in common, and a run without a steady state has no blocks."""
    entry = comparison.entry(place, variant)
    if entry is None:
        return []
    shares = entry.values("slo_met_offered_ratio", list(entry.cells))
    states = [cell.state for cell in entry.cells.values()]
    each = states if len(states) == len(shares) else states * len(shares)
    return [
        share is not None and share >= SLO_SHARE and state is RunState.STABLE
        for share, state in zip(shares, each, strict=True)
    ]


def _highest(rates: Sequence[float], held: Sequence[bool]) -> float | None:
    first_missed = next((at for at, holds in enumerate(held) if not holds), len(held))
    return rates[first_missed - 1] if first_missed else None
