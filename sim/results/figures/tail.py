"""Distributions on a scale that opens up the tail: P50, P90, P99 and P99.9 are the same distance apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.results.arrays import FloatArray, IntArray
from sim.results.figures.drawing import (
    BLUE,
    GREY,
    LOG_FROM_RATIO,
    ORANGE,
    RED,
    Data,
    Picture,
    comma,
    left_out,
    legend,
    log_x,
    picture,
    target_line,
)
from sim.results.measure import NS_PER_S, Measured
from sim.results.metrics import STATISTICS, Metrics
from sim.results.percentiles import BEYOND_FOR_A_PERCENTILE
from sim.results.steps import Plans
from sim.results.summary import value
from sim.results.wording import number, percent

DOTS_BELOW = 20
"""So few values are drawn one by one."""

POINTS = 160
TICKS = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999)


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    values: FloatArray
    """Finite ones, ascending, in the unit of the axis."""
    n: int
    """All members, those without a finite value included."""
    colour: str
    style: str = "-"


def draw_tail(axes: Axes, lines: Sequence[Line]) -> None:
    """Value across, share up; lines end where a share was not served or where too few are left to say anything."""
    n = max(line.n for line in lines)
    if n < DOTS_BELOW:
        _draw_dots(axes, lines)
        return
    top = math.log10(n / BEYOND_FOR_A_PERCENTILE)
    for line in lines:
        height = np.linspace(0, min(top, math.log10(max(line.n / BEYOND_FOR_A_PERCENTILE, 1))), POINTS)
        place = np.ceil((1 - 10.0**-height) * (line.n - 1)).astype(int)
        seen = place < len(line.values)
        across, up = line.values[place[seen]], height[seen]
        if not seen.all() and len(line.values):
            last = -math.log10(1 - (len(line.values) - 1) / (line.n - 1))
            across, up = np.append(across, line.values[-1]), np.append(up, last)
            axes.plot(across[-1], last, "x", color=line.colour, markersize=7)
        axes.plot(across, up, line.style, color=line.colour, label=line.label)
    ticks = [share for share in TICKS if -math.log10(1 - share) <= top]
    axes.set_yticks([-math.log10(1 - share) for share in ticks], ["0", *(f"P{100 * share:g}" for share in ticks[1:])])
    axes.set_ylim(0, 1.04 * top)


def _draw_dots(axes: Axes, lines: Sequence[Line]) -> None:
    for line in lines:
        axes.plot(line.values, 100 * np.arange(1, len(line.values) + 1) / line.n, "o", color=line.colour,
                  label=line.label, markersize=4)  # fmt: skip
    axes.set_ylim(0, 105)
    axes.set_ylabel("% of requests")


def scale_x(axes: Axes, lines: Sequence[Line], quantity: str, target: float | None, label: str) -> None:
    """Logarithmic where the tail is long; else from zero. A target far beyond all values is only named."""
    longest = max(float(line.values[-1]) for line in lines)
    middle = float(np.median(lines[0].values))
    logarithmic = longest > LOG_FROM_RATIO * middle > 0
    if logarithmic:
        log_x(axes, longest / max(float(lines[0].values[0]), 1e-9))
    else:
        axes.set_xlim(left=0)
        comma(axes.xaxis)
    if target is None:
        axes.set_xlabel(quantity)
    elif target <= longest * (LOG_FROM_RATIO if logarithmic else 2):
        axes.set_xlabel(quantity)
        axes.set_xlim(right=max(axes.get_xlim()[1], 1.1 * target))
        target_line(axes, target, label)
    else:
        axes.set_xlabel(f"{quantity}; {label} is far to the right")


# -- latencies of requests

LATENCIES = (("ttft", "TTFT", "ttft_s"), ("tpot", "TPOT", "tpot_s"), ("e2e", "E2E latency", "e2e_s"))


def latency_pictures(measured: Measured, metrics: Metrics) -> list[Picture]:
    """Do we meet the SLO, and for how many of the requests that were offered?"""
    times: dict[str, FloatArray | IntArray] = {
        "ttft_s": measured.ttft_ns,
        "tpot_s": measured.tpot_ns,
        "e2e_s": measured.e2e_ns,
    }
    return [_latency(measured, metrics, name, title, metric, times[metric]) for name, title, metric in LATENCIES]


def _latency(
    measured: Measured, metrics: Metrics, name: str, title: str, metric: str, time_ns: FloatArray | IntArray
) -> Picture:
    mean = metrics[f"mean_{metric}"]
    values_s: FloatArray = np.sort(time_ns[measured.served & ~np.isnan(time_ns)] / NS_PER_S)
    if not len(values_s):
        return left_out(name, title, f"{title}: {value(mean)}")
    one_token = int(measured.served.sum()) - len(values_s)
    unit, per_s = ("s", 1.0) if values_s[-1] >= 10 else ("ms", 1000.0)
    unstable = metrics.verdict.trend.unstable
    line = Line(title, values_s * per_s, measured.num_offered - one_token, GREY if unstable else BLUE)
    target_s = getattr(measured.result.slo, metric)

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        draw_tail(axes, [line])
        target = None if target_s is None else target_s * per_s
        scale_x(axes, [line], f"{title} ({unit})", target, f"SLO {target or 0:,.4g} {unit}")

    finding = _latency_finding(metrics, title, metric, line)
    return picture(
        f"cdf-{name}", f"{title}, share of offered", finding, draw, _spread_data(metrics, {f"{title} (s)": metric})
    )


def _latency_finding(metrics: Metrics, title: str, metric: str, line: Line) -> str:
    if metrics.verdict.trend.unstable:
        text = f"UNSTABLE: {title} depends on how long the trace is"
    else:
        shown = [(name, metrics[f"{name.lower()}_{metric}"].value or 0.0) for name in ("P50", "P99")]
        text = f"{title} of finished requests: " + ", ".join(f"{name} {number(1000 * s)} ms" for name, s in shown)
    missing = line.n - len(line.values)
    if missing:
        text += f"; {percent(missing / line.n)} of offered were not served (the curve ends below them)"
    met = metrics[f"slo_{metric.removesuffix('_s')}_met_offered_ratio"]
    if met.value is not None:
        text += f"; {percent(met.value)} of offered meet the SLO"
    return text + "."


def _spread_data(metrics: Metrics, named: dict[str, str]) -> Data:
    rows = tuple((label, *(value(row) for row in metrics.spread(metric)), f"{metrics.spread(metric)[0].n:,}")
                 for label, metric in named.items())  # fmt: skip
    return Data(("", *STATISTICS, "n"), rows)


# -- durations of steps


def step_picture(measured: Measured, metrics: Metrics) -> Picture:
    """Who lengthens steps?"""
    name, title = "steps", "Step time"
    lines = [
        Line(label, np.sort(_step_ms(measured.plans, prefill)), 0, colour, style)
        for label, prefill, colour, style in (("decodes only", False, BLUE, "-"), ("with prefill", True, ORANGE, "--"))
    ]
    lines = [
        Line(line.label, line.values, len(line.values), line.colour, line.style) for line in lines if len(line.values)
    ]
    if not lines:
        return left_out(name, title, "No step ran.")
    if len(lines) == 1 and lines[0].values[-1] < 1.05 * lines[0].values[0]:
        return left_out(name, title, f"All steps take {number(float(lines[0].values[0]))} ms, give or take 5 %.")
    targets_ms = _step_targets_ms(measured)

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        draw_tail(axes, lines)
        scale_x(axes, lines, f"{title} (ms)", None, "")
        for (label, at), style in zip(targets_ms, ("--", ":"), strict=False):
            if at <= axes.get_xlim()[1] * 2:
                axes.axvline(at, color=RED, linestyle=style, label=f"{label} {at:,.4g} ms")
        legend(axes, 2)

    finding = "; ".join(
        f"{line.label}: {line.n:,} steps, P50 {number(float(np.median(line.values)))} ms, "
        f"longest {number(float(line.values[-1]))} ms"
        for line in lines
    )
    for label, at in targets_ms:
        longer = sum(int((line.values > at).sum()) for line in lines) / sum(line.n for line in lines)
        finding += f"; {percent(longer)} of steps take longer than the {label} of {at:,.4g} ms"
    data = _spread_data(metrics, {"decodes only (s)": "decode_step_s", "with prefill (s)": "prefill_step_s"})
    return picture(name, title, finding + ".", draw, data)


def _step_targets_ms(measured: Measured) -> list[tuple[str, float]]:
    """What a step may take: by the budget's own target, and by the SLO on what it does to every decode."""
    targets_s = {facts.step_target_s: "step target" for facts in measured.result.engines}
    targets_s[measured.result.slo.tpot_s] = "TPOT SLO"
    return [(label, 1000 * target_s) for target_s, label in targets_s.items() if target_s is not None]


def _step_ms(plans: Sequence[Plans], prefill: bool) -> FloatArray:
    return np.concatenate([each.step_ns[np.repeat(each.has_prefill, each.steps) == prefill] for each in plans]) / 1e6
