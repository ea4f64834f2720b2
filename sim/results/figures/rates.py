"""What comes out for what goes in: goodput against the offered rate, and the differences in capacity."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.results.comparison.capacity import capacities
from sim.results.comparison.comparison import Comparison, Place
from sim.results.comparison.replications import SMALL_RATIO, half_width
from sim.results.comparison.verdicts import rate_words
from sim.results.comparison.words import interval, signed
from sim.results.figures.drawing import GREY, Data, Picture, comma, left_out, legend, picture, plain
from sim.results.figures.series import look
from sim.results.verdict import RunState
from sim.results.wording import number, visible


def rate_metric(comparison: Comparison) -> tuple[str, str]:
    """(metric, its name): goodput where there are targets."""
    return ("goodput_per_s", "Goodput") if comparison.has_slo else ("finished_per_s", "Finished")


def draw_rates(axes: Axes, comparison: Comparison, trace: str) -> None:
    """A line per variant; hollow where the backlog grows, bars where there are replications."""
    metric, name = rate_metric(comparison)
    highest = 0.0
    for variant in comparison.variants:
        seen = look(comparison, variant)
        xs, ys, errors, stable = [], [], [], []
        for place in _places(comparison, trace):
            entry, offered = comparison.entry(place, variant), comparison.offered_per_s(place)
            value = entry.mean(metric) if entry is not None else None
            if entry is None or offered is None or value is None:
                continue
            known = [each for each in entry.values(metric, list(entry.cells)) if each is not None]
            xs.append(offered)
            ys.append(value)
            errors.append(half_width(known) if len(known) > 1 else 0.0)
            stable.append(entry.state is RunState.STABLE)
        axes.plot(xs, ys, seen.style, color=seen.colour, marker=seen.marker, markersize=5, label=seen.label)
        hollow = [at for at, steady in enumerate(stable) if not steady]
        axes.plot([xs[at] for at in hollow], [ys[at] for at in hollow], linestyle="none", marker=seen.marker,
                  markersize=5, markerfacecolor="white", markeredgecolor=seen.colour)  # fmt: skip
        if any(errors):
            axes.errorbar(xs, ys, errors, fmt="none", ecolor=seen.colour, capsize=3, linewidth=1)
        highest = max([highest, *xs])
    axes.plot([0, highest], [0, highest], color=GREY, linewidth=0.8, linestyle=":")
    axes.set_xlim(0, 1.05 * highest or 1)
    axes.set_ylim(bottom=0)
    comma(axes.xaxis)
    axes.set_xlabel("offered requests/s (hollow: UNSTABLE)")
    axes.set_ylabel(f"{name.lower()} requests/s")
    legend(axes, 2)
    plain(axes.get_legend().get_texts())  # type: ignore[union-attr]


def _places(comparison: Comparison, trace: str) -> list[Place]:
    return sorted((each for each in comparison.places if each.trace == trace), key=lambda place: place.rate_scale)


def rate_picture(comparison: Comparison, trace: str) -> Picture:
    metric, name = rate_metric(comparison)
    title = f"{name} against offered rate"
    places = _places(comparison, trace)
    if len(places) < 2:
        return left_out("rates", title, "One rate only.")

    def draw(figure: Figure) -> None:
        draw_rates(figure.add_subplot(), comparison, trace)

    rows, best = [], []
    for place in places:
        means = {entry.variant: entry.mean(metric) for entry in comparison.entries(place)}
        rows.append((rate_words(comparison, place), *(_shown(means.get(v)) for v in comparison.variants)))
        best.append(f"{rate_words(comparison, place)}: {_most(comparison, means)}")
    finding = visible("; ".join(best)) + "."
    return picture("rates", title, finding, draw, Data(("offered", *comparison.variants), tuple(rows)))


def _most(comparison: Comparison, means: Mapping[str, float | None]) -> str:
    """Who gets most out, by letters: all that are within 5 % of the first, for a smaller lead is none."""
    known = {variant: value for variant, value in means.items() if value is not None}
    if not known:
        return "n/a"
    most = max(known.values())
    first = [look(comparison, variant).letter for variant, value in known.items() if value >= (1 - SMALL_RATIO) * most]
    return f"{number(most)} req/s with {', '.join(first)}" + (" (within 5 %)" if len(first) > 1 else "")


def _shown(value: float | None) -> str:
    return "n/a" if value is None else number(value)


def capacity_picture(comparison: Comparison, trace: str) -> Picture:
    """Paired differences of the highest rate that holds the SLO, from the base's."""
    title = "Capacity at SLO against A"
    found = capacities(comparison, trace) if comparison.has_slo else {}
    base = found.pop(comparison.base, None)
    each = {variant: found[variant].versus(base) for variant in found} if base is not None else {}
    sure = {variant: diff for variant, diff in each.items() if diff is not None and diff.low is not None}
    if not sure:
        return left_out("capacity", title, "No intervals: they need replications, an SLO, and rates at which it holds.")

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for at, (variant, diff) in enumerate(sure.items()):
            seen = look(comparison, variant)
            low, mid, high = (100 * (value or 0.0) for value in (diff.low, diff.ratio, diff.high))
            axes.plot([low, high], [at, at], color=seen.colour)
            axes.plot(mid, at, marker=seen.marker, color=seen.colour)
        axes.axvline(0, color=GREY, linewidth=0.8)
        axes.set_yticks(range(len(sure)), [look(comparison, variant).label for variant in sure])
        plain(axes.get_yticklabels())
        axes.set_ylim(len(sure) - 0.5, -0.5)
        axes.set_xlabel("highest rate that holds the SLO, % of A's")

    rows = tuple((variant, signed(diff.ratio or 0.0), interval(diff)) for variant, diff in sure.items())
    finding = visible("; ".join(" ".join(row) for row in rows)) + "."
    return picture("capacity", title, finding, draw, Data(("variant", "vs A", "95 %"), rows))
