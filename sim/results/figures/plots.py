"""Figures of a run for notebooks: those of the report, on matplotlib figures of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from sim.results.arrays import BoolArray
from sim.results.figures.drawing import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PINK,
    RED,
    SKY,
    Picture,
    in_style,
    plain,
    shown_figure,
    styled,
)
from sim.results.figures.load import backlog_picture, batch_picture, blocked_picture, kv_picture
from sim.results.figures.tail import Line, draw_tail, scale_x, step_picture
from sim.results.measure import NS_PER_S, Measured
from sim.results.metrics import Metrics
from sim.results.wording import shortened

if TYPE_CHECKING:
    from sim.results.run import RunResult

LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E latency", "queue": "Queue time"}
COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, RED, BLACK)
STYLES = ("-", "--", "-.", ":")
MOST_GROUPS = 6
"""The largest ones; more lines cannot be told apart."""


class RunPlots:
    """Each method draws on a new figure (or on `ax`) and returns its axes; nothing is set globally."""

    def __init__(self, run: RunResult) -> None:
        self._run = run

    def cdf(self, latency: str = "ttft", *, by: str | None = None, slo: float | None = None,
            ax: Axes | None = None) -> Axes:  # fmt: skip
        """Share of offered requests by `ttft`, `tpot`, `e2e` or `queue`; `by="client"` draws a line for each.

        `slo`: a target in seconds; by default the run's own.
        """
        if latency not in LATENCIES:
            raise ValueError(f"latency must be one of {', '.join(LATENCIES)}, got {latency!r}")
        target = slo if slo is not None else getattr(self._run.slo, f"{latency}_s", None)
        target_ms = None if target is None else 1000 * target
        lines = _lines(self._run.measured, latency, by)

        def draw(axes: Axes) -> None:
            if not lines:
                axes.set_axis_off()
                return
            draw_tail(axes, lines)
            scale_x(axes, lines, f"{LATENCIES[latency]} (ms)", target_ms, f"SLO {target_ms or 0:,.4g} ms")
            if len(lines) > 1:
                plain(axes.legend(loc="lower right").get_texts())

        return styled(ax, draw)

    def backlog(self) -> list[Axes]:
        """Waiting requests, arrivals and ends over time."""
        return _drawn(backlog_picture(*self._both))

    def blocked(self) -> list[Axes]:
        """What waiting requests wait for."""
        return _drawn(blocked_picture(*self._both))

    def kv(self) -> list[Axes]:
        """KV blocks used, reserved and cached."""
        return _drawn(kv_picture(*self._both))

    def batch(self) -> list[Axes]:
        """What steps are made of."""
        return _drawn(batch_picture(*self._both))

    def steps(self) -> list[Axes]:
        """How long steps take, decodes only and with prefill."""
        return _drawn(step_picture(*self._both))

    @property
    def _both(self) -> tuple[Measured, Metrics]:
        return self._run.measured, self._run.computed


def _drawn(one: Picture) -> list[Axes]:
    """On a new figure that a notebook shows; empty axes with the reason where there is nothing to see."""
    figure = shown_figure()
    with in_style():
        if one.draw is None:
            axes = figure.add_subplot()
            axes.set_axis_off()
            axes.text(0.5, 0.5, one.finding, ha="center", wrap=True, parse_math=False)
        else:
            one.draw(figure)
    return figure.axes


def _lines(measured: Measured, latency: str, by: str | None) -> list[Line]:
    times = {"ttft": measured.ttft_ns, "tpot": measured.tpot_ns, "e2e": measured.e2e_ns, "queue": measured.queue_ns}
    time_ns = times[latency]
    known = measured.served & ~np.isnan(time_ns)
    one_token = measured.served & np.isnan(time_ns)
    lines = []
    for at, (name, mine) in enumerate(_groups(measured, by)):
        values = np.sort(time_ns[known & mine]) / NS_PER_S * 1000
        n = int((measured.arrived & mine).sum() - (one_token & mine).sum())
        if len(values):
            lines.append(Line(name, values, n, COLOURS[at % len(COLOURS)], STYLES[at % len(STYLES)]))
    return lines


def _groups(measured: Measured, by: str | None) -> list[tuple[str, BoolArray]]:
    if by is None:
        return [("all", measured.arrived)]
    if by != "client":
        raise ValueError(f"by must be 'client' or None, got {by!r}")
    clients = np.array(measured.result.trace.clients or [""] * len(measured.arrived), dtype=object)
    names, counts = np.unique(clients.astype(str), return_counts=True)
    largest = names[np.argsort(-counts, kind="stable")][:MOST_GROUPS]
    return [(shortened(str(name), 24) or "(no client)", clients == name) for name in largest]
