"""Trade-offs: who is beaten in both figures at once, and who lies on the frontier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim.results.comparison.comparison import Comparison
from sim.results.comparison.tables import entries_everywhere

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class TradeOff:
    """A latency (less is better) against a rate (more is better)."""

    latency: str
    rate: str


@dataclass(frozen=True, slots=True)
class Spot:
    trace: str
    rate_scale: float
    variant: str
    latency: float
    rate: float
    dominated: bool


def trade_offs(comparison: Comparison) -> list[TradeOff]:
    rate = "goodput_per_s" if comparison.has_slo else "finished_per_s"
    return [TradeOff("p99_ttft_s", "output_tokens_per_s"), TradeOff("p99_tpot_s", rate)]


def spots(comparison: Comparison, trade_off: TradeOff) -> list[Spot]:
    """Who has both figures; one trace's spots do not dominate another's."""
    found = []
    for place, entry in entries_everywhere(comparison):
        latency, rate = entry.mean(trade_off.latency), entry.mean(trade_off.rate)
        if latency is not None and rate is not None:
            found.append((place.trace, place.rate_scale, entry.variant, latency, rate))
    pairs = {trace: [(each[3], each[4]) for each in found if each[0] == trace] for trace in {each[0] for each in found}}
    return [Spot(*each, dominated=dominated(each[3], each[4], pairs[each[0]])) for each in found]


def dominated(latency: float, rate: float, others: Sequence[tuple[float, float]]) -> bool:
    """Whether another one is at least as good in both and better in one."""
    return any(a <= latency and b >= rate and (a < latency or b > rate) for a, b in others)


def pareto_table(comparison: Comparison) -> pd.DataFrame:
    import pandas as pd

    rows = [
        {
            "trade_off": f"{trade_off.latency} x {trade_off.rate}",
            "trace": spot.trace,
            "rate_scale": spot.rate_scale,
            "variant": spot.variant,
            "latency_s": spot.latency,
            "rate_per_s": spot.rate,
            "dominated": spot.dominated,
        }
        for trade_off in trade_offs(comparison)
        for spot in spots(comparison, trade_off)
    ]
    return pd.DataFrame(rows)
