"""Figures of comparisons for notebooks: the drawings of the report on axes of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sim.results.comparison.comparison import Comparison, Place
from sim.results.comparison.frontier import trade_offs
from sim.results.comparison.verdicts import telling_place
from sim.results.figures.drawing import styled
from sim.results.figures.rates import draw_rates
from sim.results.figures.requests import draw_cdfs, draw_scatter
from sim.results.figures.trade_offs import draw_trade_off

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class ComparisonPlots:
    """Each method draws on `ax`, or on a new figure, and returns the axes; nothing is shown or set globally."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison

    def goodput(self, trace: str | None = None, ax: Axes | None = None) -> Axes:
        """Goodput (finished requests where there is no SLO) against the offered rate."""
        name = trace or self._comparison.places[0].trace
        return styled(ax, lambda axes: draw_rates(axes, self._comparison, name))

    def pareto(self, latency: str = "ttft", trace: str | None = None, ax: Axes | None = None) -> Axes:
        """P99 TTFT x output tokens/s, or (`latency="tpot"`) P99 TPOT x goodput."""
        chosen = trade_offs(self._comparison)[{"ttft": 0, "tpot": 1}[latency]]
        name = trace or self._comparison.places[0].trace
        return styled(ax, lambda axes: draw_trade_off(axes, self._comparison, chosen, name))

    def cdf(self, latency: str = "ttft", place: Place | None = None, ax: Axes | None = None) -> Axes:
        """Of all variants at one place: by default the highest rate with a steady state."""
        return styled(ax, self._at(place, lambda axes, at: draw_cdfs(axes, self._comparison, at, f"{latency}_s")))

    def scatter(self, variant: str | None = None, latency: str = "ttft", place: Place | None = None,
                ax: Axes | None = None) -> Axes:  # fmt: skip
        """Each request in the base and in a variant (by default the second)."""
        name = variant or self._comparison.variants[1]
        return styled(
            ax, self._at(place, lambda axes, at: draw_scatter(axes, self._comparison, at, name, f"{latency}_s"))
        )

    def _at(self, place: Place | None, draw: Callable[[Axes, Place], None]) -> Callable[[Axes], None]:
        places = self._comparison.places
        at = place or telling_place(self._comparison, places) or places[0]
        return lambda axes: draw(axes, at)
