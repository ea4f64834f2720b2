"""Variants request by request: distributions side by side, and each request in two runs."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.results.arrays import FloatArray
from sim.results.comparison.comparison import Comparison, Place
from sim.results.comparison.verdicts import rate_words
from sim.results.figures.drawing import BLUE, GREY, Data, Picture, comma, left_out, picture, plain
from sim.results.figures.series import look
from sim.results.figures.tail import Line, draw_tail, scale_x
from sim.results.verdict import RunState
from sim.results.wording import number, percent, visible

WORDS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E latency"}
DOTS_UP_TO = 2000
"""More requests are counted in hexagons."""


def _target_s(comparison: Comparison, place: Place, latency: str) -> float | None:
    first = comparison.entries(place)[0].first
    target: float | None = (first.scenario.get("slo") or {}).get(latency)
    return target


# -- distributions


def draw_cdfs(axes: Axes, comparison: Comparison, place: Place, latency: str) -> None:
    """Of offered requests, on a scale that opens up the tail; variants without a steady state are left out."""
    lines = []
    for entry in comparison.entries(place):
        values = entry.first.latency_s[latency]
        known: FloatArray = np.sort(values[~np.isnan(values)]) * 1000
        if entry.state is RunState.STABLE and len(known):
            seen = look(comparison, entry.variant)
            offered = int(entry.first.rows["num_offered"].value or 0)
            unmeasured = int(entry.first.rows["num_finished"].value or 0) - len(known)
            lines.append(Line(seen.label, known, offered - max(0, unmeasured), seen.colour, seen.style))
    if not lines:
        axes.set_axis_off()
        return
    draw_tail(axes, lines)
    target_s = _target_s(comparison, place, latency)
    target = None if target_s is None else 1000 * target_s
    scale_x(
        axes, lines, f"{WORDS[latency]} (ms) at {rate_words(comparison, place)}", target, f"SLO {target or 0:,.4g} ms"
    )
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", fontsize=7.5, frameon=True, edgecolor="none", framealpha=0.85)
        plain(axes.get_legend().get_texts())  # type: ignore[union-attr]


def cdf_picture(comparison: Comparison, place: Place, latency: str) -> Picture:
    name, title = f"cdf-{latency}", f"{WORDS[latency]}, share of offered, at {rate_words(comparison, place)}"
    stable = [entry for entry in comparison.entries(place) if entry.state is RunState.STABLE]
    if not stable:
        return left_out(name, title, "No variant has a steady state.")

    def draw(figure: Figure) -> None:
        draw_cdfs(figure.add_subplot(), comparison, place, latency)

    rows = tuple(
        (entry.variant, *(_ms(entry.first.rows[f"{p}_{latency}"].value) for p in ("p50", "p90", "p99", "max")))
        for entry in stable
    )
    finding = "P99: " + ", ".join(f"{look(comparison, row[0]).letter} {row[3]} ms" for row in rows) + "."
    return picture(name, title, visible(finding), draw, Data(("ms", "P50", "P90", "P99", "max"), rows))


def _ms(seconds: float | None) -> str:
    return "n/a" if seconds is None else number(1000 * seconds)


# -- pairs


def _pairs(comparison: Comparison, place: Place, variant: str, latency: str) -> tuple[FloatArray, FloatArray]:
    """Of requests that both served, in ms; of the first seed that both have."""
    base, other = comparison.entry(place, comparison.base), comparison.entry(place, variant)
    if base is None or other is None:
        return np.zeros(0), np.zeros(0)
    seed = next((each for each in base.cells if each in other.cells), None)
    if seed is None:
        return np.zeros(0), np.zeros(0)
    x, y = (entry.cells[seed].latency_s[latency] * 1000 for entry in (base, other))
    known = ~np.isnan(x) & ~np.isnan(y) & (x > 0) & (y > 0)
    return x[known], y[known]


def draw_scatter(axes: Axes, comparison: Comparison, place: Place, variant: str, latency: str) -> None:
    x, y = _pairs(comparison, place, variant, latency)
    if not len(x):
        axes.set_axis_off()
        return
    axes.set_xscale("log")
    axes.set_yscale("log")
    if len(x) <= DOTS_UP_TO:
        axes.plot(x, y, ".", color=BLUE, markersize=3, alpha=0.4, rasterized=True)
    else:
        axes.hexbin(x, y, gridsize=32, xscale="log", yscale="log", mincnt=1, bins="log", cmap="cividis_r", linewidths=0)
    ends = [min(x.min(), y.min()) / 1.2, max(x.max(), y.max()) * 1.2]
    axes.plot(ends, ends, color=GREY, linewidth=0.9)
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    comma(axes.xaxis)
    comma(axes.yaxis)
    words = WORDS[latency]
    axes.set_xlabel(f"{words} with {look(comparison, comparison.base).label}, ms", parse_math=False)
    axes.set_ylabel(f"{words} with {look(comparison, variant).letter}, ms")


def scatter_picture(comparison: Comparison, place: Place, variant: str, latency: str) -> Picture:
    sign = look(comparison, variant).letter
    name, title = f"scatter-{sign}", f"{WORDS[latency]} request by request: {sign} against A"
    x, y = _pairs(comparison, place, variant, latency)
    if not len(x):
        return left_out(name, title, visible(f"{comparison.base} and {variant} have no served request in common."))

    def draw(figure: Figure) -> None:
        draw_scatter(figure.add_subplot(), comparison, place, variant, latency)

    better, equal = float((y < x).mean()), float((y == x).mean())
    finding = (
        f"At {rate_words(comparison, place)}, {percent(better)} of {len(x):,} requests have a shorter "
        f"{WORDS[latency]} with {variant} than with {comparison.base} (below the line)"
    ) + (f", {percent(equal)} the same." if equal else ".")
    change = np.percentile(y - x, (5, 50, 95))
    rows = (
        ("5 % of requests below", number(change[0])),
        ("median", number(change[1])),
        ("5 % above", number(change[2])),
    )
    return picture(name, title, visible(finding), draw, Data((f"{sign} - A", "ms"), rows))
