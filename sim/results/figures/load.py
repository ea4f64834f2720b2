"""Load over time: who waits and for what, how full the pool is, what the steps are made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from costmodel.work import EQUAL_WORK
from sim.core.lifecycle import TERMINAL, State
from sim.core.plan import Blocker
from sim.results.arrays import FloatArray, IntArray, view
from sim.results.blocked import WAITED_FOR
from sim.results.figures.drawing import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    NUM_BINS,
    ORANGE,
    PINK,
    RED,
    SKY,
    Picture,
    comma,
    in_rows,
    left_out,
    legend,
    picture,
)
from sim.results.measure import NS_PER_S, Measured
from sim.results.metrics import Metrics
from sim.results.steps import Plans
from sim.results.summary import BLOCKER_WORDS, blocked_line, in_one_line, value, whole
from sim.results.timeline import Band, Curve, band, edges_ns, of_plans, rate_per_s, seconds, waiting, waiting_by_blocker
from sim.results.wording import count, number, percent

NUM_RATE_BINS = 60
"""Of rates, which are noise in bins with few requests."""

WAIT_SHARE = 0.01
"""Less waiting than this share of all latency is not worth a figure."""

BLOCKER_COLOURS = {
    Blocker.BLOCKS: BLUE,
    Blocker.WORK: ORANGE,
    Blocker.SLOTS: GREEN,
    Blocker.POLICY: PINK,
    Blocker.STEP: SKY,
}


def over_time(axes: Axes, x: FloatArray, band_: Band, colour: str, label: str, style: str = "-") -> None:
    """The mean as a line in a band from the lowest to the highest value."""
    axes.fill_between(x, band_.low, band_.high, color=colour, alpha=0.22, linewidth=0)
    axes.plot(x, band_.mean, style, color=colour, label=label)


def finish(axes: Axes, ylabel: str, *, xlabel: bool = True) -> None:
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    axes.set_ylabel(ylabel)
    comma(axes.yaxis)
    comma(axes.xaxis)
    if xlabel:
        axes.set_xlabel("simulated time (s)")


# -- waiting


def backlog_picture(measured: Measured, metrics: Metrics) -> Picture:
    """Is there a steady state?"""
    edges = edges_ns(measured, NUM_BINS)
    x, queue = seconds(edges), band(waiting(measured), edges)
    arrivals = measured.result.trace.arrival_ns[measured.arrived]
    wide = edges_ns(measured, NUM_RATE_BINS)
    arriving, finishing = rate_per_s(arrivals, wide), rate_per_s(_ends(measured, lost=False), wide)
    lost = rate_per_s(_ends(measured, lost=True), edges) > 0

    def draw(figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        over_time(upper, x, queue, BLUE, "waiting (mean, lowest to highest)")
        if lost.any():
            upper.plot(x[lost], np.zeros(lost.sum()), "x", color=RED, clip_on=False, label="lost")
        legend(upper)
        finish(upper, "requests", xlabel=False)
        lower.plot(seconds(wide), arriving, color=GREY, label="arrivals", drawstyle="steps-mid", linewidth=1)
        lower.plot(seconds(wide), finishing, "--", color=GREEN, label="finished", linewidth=1.2)
        legend(lower)
        finish(lower, "per s")
        for axes in (upper, lower):
            axes.axvline(arrivals.max(initial=0) / NS_PER_S, color=BLACK, linestyle=":", linewidth=1)

    trend = metrics.verdict.trend
    finding = (
        f"Waiting requests per arrival: {number(trend.first_half)} in the first half of the arrivals' time, "
        f"{number(trend.second_half)} in the second; most at once {int(queue.high.max()):,}. "
        "The dotted line is the last arrival."
    )
    queue_mean = band(waiting(measured), wide).mean
    data = in_rows(("s", "waiting", "arrivals/s", "finished/s"), seconds(wide), queue_mean, arriving, finishing)
    return picture("backlog", "Backlog and arrivals", finding, draw, data)


def _ends(measured: Measured, *, lost: bool) -> IntArray:
    states = [state for state in TERMINAL if (state is not State.FINISHED) == lost]
    mask = np.any([measured.ended(state) for state in states], axis=0)
    return view(measured.result.requests.end_ns)[mask]


def blocked_picture(measured: Measured, metrics: Metrics) -> Picture:
    """What to buy or to tune?"""
    name, title = "blocked", "What waiting requests wait for"
    waited = float(measured.total_blocked_ns.sum())
    lived = float(measured.e2e_ns[measured.served].sum())
    if waited < WAIT_SHARE * lived or not waited:
        return left_out(
            name, title, f"Waiting is {percent(waited / lived if lived else 0.0)} of all latency: no figure."
        )
    edges = edges_ns(measured, NUM_BINS)
    x, queue = seconds(edges), waiting_by_blocker(measured, edges)
    shown = [place for place in np.argsort(-queue.sum(axis=1), kind="stable") if queue[place].any()]
    words = [BLOCKER_WORDS[WAITED_FOR[place]] for place in shown]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        colours = [BLOCKER_COLOURS[WAITED_FOR[place]] for place in shown]
        axes.stackplot(x, queue[shown], labels=words, colors=colours, linewidth=0)
        legend(axes)
        finish(axes, "waiting requests, mean")

    data = in_rows(("s", *words), x, *queue[shown])
    return picture(name, title, f"The head of the queue waited for: {in_one_line(blocked_line(metrics))}.", draw, data)


# -- the pool


def kv_picture(measured: Measured, metrics: Metrics) -> Picture:
    """Does memory bind?"""
    edges = edges_ns(measured, NUM_BINS)
    x = seconds(edges)
    used = _sum([band(_used(plans), edges) for plans in measured.plans])
    reserved = _sum([band(of_plans(plans, plans.column("reserved_blocks")), edges) for plans in measured.plans])
    cached = _sum([band(of_plans(plans, plans.cached_blocks), edges) for plans in measured.plans])
    capacity = sum(facts.total_blocks for facts in measured.result.engines)

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        if cached.high.any():
            axes.fill_between(x, used.mean, used.mean + cached.mean, color=GREEN, alpha=0.25, linewidth=0,
                              label="cached, free to take")  # fmt: skip
        over_time(axes, x, used, BLUE, "used")
        if reserved.high.any():
            axes.plot(x, reserved.mean, "--", color=ORANGE, label="reserved")
        axes.axhline(capacity, color=BLACK, linewidth=1, label="capacity")
        legend(axes, 4)
        finish(axes, "KV blocks")
        axes.set_ylim(0, 1.04 * capacity)

    finding = (
        f"Blocks in use: mean {value(metrics['mean_kv_used_ratio'])}, most {value(metrics['max_kv_used_ratio'])} of "
        f"{capacity:,}; {whole(metrics, 'num_preemptions'):,} preemptions, "
        f"{whole(metrics, 'evicted_blocks'):,} cached blocks evicted."
    )
    data = in_rows(("s", "used", "reserved", "cached"), x, used.mean, reserved.mean, cached.mean)
    return picture("kv", "KV blocks", finding, draw, data)


def _used(plans: Plans) -> Curve:
    first = plans.column("used_blocks").astype(np.float64)
    return of_plans(plans, first, 2 * plans.used_blocks - first)


def _sum(bands: list[Band]) -> Band:
    """Of all engines; lowest and highest as if all engines had theirs at once."""
    return Band(*(np.sum([getattr(each, part) for each in bands], axis=0) for part in ("mean", "low", "high")))


# -- the steps


def batch_picture(measured: Measured, metrics: Metrics) -> Picture:
    """Is the budget used up, and by what?"""
    limits = [facts.step_budget for facts in measured.result.engines]
    limit = None if None in limits else sum(each for each in limits if each is not None)
    in_tokens = all(isinstance(each, int) for each in limits)
    panels = [Panel("tokens", True, limit if in_tokens else None)]
    if not in_tokens or any(plans.work != EQUAL_WORK for plans in measured.plans):
        panels.append(Panel("token-work", False, None if in_tokens else limit))
    edges = edges_ns(measured, NUM_BINS)
    x, made_of = seconds(edges), [_composition(measured.plans, panel, edges) for panel in panels]

    def draw(figure: Figure) -> None:
        rows = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axes, panel, (decode, prefill, most) in zip(rows, panels, made_of, strict=True):
            axes.stackplot(x, decode, prefill, labels=["decode", "prefill"], colors=[BLUE, ORANGE], linewidth=0)
            axes.plot(x, most, color=GREY, linewidth=0.8, label="at most")
            if panel.limit is not None:
                axes.axhline(panel.limit, color=BLACK, linewidth=1, label="limit")
            finish(axes, f"{panel.unit}/step", xlabel=axes is rows[-1])
        legend(rows[-1] if panels[-1].limit is not None else rows[0], 4)

    head = [f"{kind} {panel.unit}" for panel in panels for kind in ("decode", "prefill")]
    data = in_rows(("s", *head), x, *(values for parts in made_of for values in parts[:2]))
    return picture("batch", "Batch composition", _batch_finding(metrics), draw, data)


@dataclass(frozen=True, slots=True)
class Panel:
    unit: str
    in_tokens: bool
    limit: float | None


def _composition(every: list[Plans], panel: Panel, edges: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Means of decode and prefill in each bin, and the most of both together."""
    parts = [(plans, _decodes(plans, panel.in_tokens), _prefills(plans, panel.in_tokens)) for plans in every]
    decode = _sum([band(of_plans(plans, decodes), edges) for plans, decodes, _ in parts])
    prefill = _sum([band(of_plans(plans, prefills), edges) for plans, _, prefills in parts])
    both = _sum([band(of_plans(plans, decodes + prefills), edges) for plans, decodes, prefills in parts])
    return decode.mean, prefill.mean, both.high


def _batch_finding(metrics: Metrics) -> str:
    starved = whole(metrics, "num_starved_steps")
    return (
        f"A step has {value(metrics['mean_batch_requests_by_step'])} requests on average (most "
        f"{whole(metrics, 'max_batch_requests'):,}); prefill is {value(metrics['prefill_work_ratio'])} of the work"
        + (f"; prefill starved in {count(starved, 'step')}." if starved else ".")
    )


def _decodes(plans: Plans, in_tokens: bool) -> FloatArray:
    return plans.column("decode_requests").astype(np.float64) if in_tokens else plans.decode_work


def _prefills(plans: Plans, in_tokens: bool) -> FloatArray:
    return plans.column("prefill_tokens").astype(np.float64) if in_tokens else plans.prefill_work
