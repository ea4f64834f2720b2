"""Latency against throughput: the frontier, who is beaten, and the area in which the target is met."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.results.comparison.comparison import Comparison
from sim.results.comparison.frontier import Spot, TradeOff, spots
from sim.results.figures.drawing import GREEN, GREY, LOG_FROM_RATIO, Data, Picture, comma, left_out, log_x, picture
from sim.results.figures.series import look
from sim.results.wording import number, visible

LATENCY_WORDS = {"p99_ttft_s": "TTFT P99", "p99_tpot_s": "TPOT P99"}
RATE_WORDS = {
    "output_tokens_per_s": "output tokens/s",
    "goodput_per_s": "goodput requests/s",
    "finished_per_s": "finished requests/s",
}
NEAR_LATENCY, NEAR_RATE = 1.15, 1.04
"""Spots within these ratios of each other share a label."""
FEWEST = 3
"""Two spots are no frontier."""


def _target_s(comparison: Comparison, latency: str) -> float | None:
    slo = next(iter(comparison.cells.values())).scenario.get("slo") or {}
    target: float | None = slo.get(latency.removeprefix("p99_"))
    return target


def draw_trade_off(axes: Axes, comparison: Comparison, trade_off: TradeOff, trace: str) -> None:
    found = [spot for spot in spots(comparison, trade_off) if spot.trace == trace]
    target_s = _target_s(comparison, trade_off.latency)
    if target_s is not None:
        axes.axvspan(0, 1000 * target_s, color=GREEN, alpha=0.08, linewidth=0)
    for spot in found:
        seen = look(comparison, spot.variant)
        colour = GREY if spot.dominated else seen.colour
        axes.plot(1000 * spot.latency, spot.rate, marker=seen.marker, color=colour, markersize=6,
                  alpha=0.6 if spot.dominated else 1.0)  # fmt: skip
    for spot, letters in _labels(comparison, found):
        axes.annotate(letters, (1000 * spot.latency, spot.rate), (6, 4), textcoords="offset points", fontsize=8)
    _draw_frontier(axes, [spot for spot in found if not spot.dominated])
    values = sorted(1000 * spot.latency for spot in found)
    if values and values[-1] > LOG_FROM_RATIO * values[0] > 0:
        axes.set_xlim(values[0] / 1.5, values[-1] * 1.5)
        log_x(axes, values[-1] / values[0])
    elif values:
        axes.set_xlim(0, 1.15 * values[-1])
        comma(axes.xaxis)
    comma(axes.yaxis)
    axes.set_ylim(bottom=0, top=1.12 * max((spot.rate for spot in found), default=1.0) or 1.0)
    shaded = " (shaded: within the SLO)" if target_s is not None else ""
    axes.set_xlabel(f"{LATENCY_WORDS[trade_off.latency]}, ms{shaded}")
    axes.set_ylabel(RATE_WORDS[trade_off.rate])


def _labels(comparison: Comparison, found: list[Spot]) -> list[tuple[Spot, str]]:
    """One label for spots that lie on each other: `A C D`, at the one furthest to the right."""
    labels: list[tuple[Spot, str]] = []
    for spot in sorted(found, key=lambda each: (each.rate, each.latency)):
        sign = look(comparison, spot.variant).letter
        last = labels[-1][0] if labels else None
        if last is not None and _near(spot, last):
            before, letters = labels.pop()
            labels.append((max(before, spot, key=lambda each: each.latency), f"{letters} {sign}"))
        else:
            labels.append((spot, sign))
    return labels


def _near(one: Spot, other: Spot) -> bool:
    low, high = sorted((one.latency, other.latency))
    return high <= NEAR_LATENCY * low and one.rate <= NEAR_RATE * other.rate


def _draw_frontier(axes: Axes, best: list[Spot]) -> None:
    """As steps: between two spots there is what the one with less latency gives."""
    best = sorted(best, key=lambda spot: spot.latency)
    axes.step([1000 * spot.latency for spot in best], [spot.rate for spot in best], where="post", color=GREY,
              linewidth=1, zorder=1)  # fmt: skip


def trade_off_picture(comparison: Comparison, trade_off: TradeOff, trace: str) -> Picture:
    latency, rate = LATENCY_WORDS[trade_off.latency], RATE_WORDS[trade_off.rate]
    name, title = f"pareto-{trade_off.latency}", f"{latency} against {rate}"
    found = [spot for spot in spots(comparison, trade_off) if spot.trace == trace]
    if len(found) < FEWEST:
        return left_out(name, title, f"Fewer than {FEWEST} runs have a steady state.")

    def draw(figure: Figure) -> None:
        draw_trade_off(figure.add_subplot(), comparison, trade_off, trace)

    best = sorted((spot for spot in found if not spot.dominated), key=lambda spot: spot.latency)
    finding = "On the frontier: " + ", ".join(
        f"{look(comparison, spot.variant).letter} x{spot.rate_scale:g} ({number(1000 * spot.latency)} ms, "
        f"{number(spot.rate)} /s)"
        for spot in best
    )
    rows = tuple(
        (spot.variant, f"{spot.rate_scale:g}", number(1000 * spot.latency), number(spot.rate),
         "beaten" if spot.dominated else "frontier")
        for spot in found
    )  # fmt: skip
    return picture(name, title, visible(finding) + ".", draw,
                   Data(("variant", "rate x", f"{latency}, ms", rate, ""), rows))  # fmt: skip
