"""All figures of a comparison, in the order of the report; loads matplotlib."""

from __future__ import annotations

from sim.results.comparison.comparison import Comparison
from sim.results.comparison.frontier import trade_offs
from sim.results.comparison.verdicts import telling_place
from sim.results.figures.drawing import Picture
from sim.results.figures.rates import capacity_picture, rate_picture
from sim.results.figures.requests import cdf_picture, scatter_picture
from sim.results.figures.trade_offs import trade_off_picture
from sim.results.verdict import RunState

MOST_SCATTERS = 4


def album(comparison: Comparison) -> list[Picture]:
    """For each trace; distributions and scatters at its highest rate with a steady state."""
    pictures = []
    for trace in dict.fromkeys(place.trace for place in comparison.places):
        places = [place for place in comparison.places if place.trace == trace]
        if len(places) > 1:
            pictures += [rate_picture(comparison, trace), capacity_picture(comparison, trace)]
        pictures += [trade_off_picture(comparison, each, trace) for each in trade_offs(comparison)]
        place = telling_place(comparison, places) or places[0]
        pictures += [cdf_picture(comparison, place, latency) for latency in ("ttft_s", "tpot_s")]
        stable = [entry.variant for entry in comparison.entries(place) if entry.state is RunState.STABLE]
        others = [variant for variant in stable if variant != comparison.base][:MOST_SCATTERS]
        pictures += [scatter_picture(comparison, place, variant, "ttft_s") for variant in others]
    return pictures
