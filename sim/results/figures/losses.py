"""Who lost: requests that did not finish, preemptions, and clients that waited longer than others."""

from __future__ import annotations

from matplotlib.figure import Figure

from sim.core.lifecycle import State
from sim.results.clients import ClientRow
from sim.results.figures.drawing import (
    BLUE,
    LOG_FROM_RATIO,
    RED,
    Data,
    Picture,
    comma,
    left_out,
    legend,
    log_x,
    picture,
    plain,
)
from sim.results.metrics import Metrics
from sim.results.wording import clipped, number, percent

MOST_BARS = 8
MOST_CLIENTS = 30
WORST_CLIENTS = 15


def lost_picture(metrics: Metrics) -> Picture:
    """Why were requests lost, or work thrown away?"""
    name, title = "lost", "Requests lost and preempted, by reason"
    bars = _bars(metrics)
    if not bars:
        return left_out(name, title, "No request was rejected, timed out, cancelled, lost or preempted.")
    shown = bars[:MOST_BARS]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        places = range(len(shown))
        axes.barh(places, [times for _, times in shown], color=BLUE, height=0.44)
        axes.set_yticks([])
        axes.set_ylim(len(shown) - 0.6, -0.9)
        axes.set_xlim(right=1.18 * shown[0][1])
        for place, (what, times) in zip(places, shown, strict=True):
            axes.annotate(f"{times:,}", (times, place), (4, 0), textcoords="offset points", va="center")
            plain([axes.text(0, place - 0.27, f" {clipped(what, 60)}", va="bottom")])
        axes.set_xlabel("requests, or preemptions")
        comma(axes.xaxis)

    finding = "; ".join(f"{clipped(what, 60)}: {times:,}" for what, times in shown) + "."
    rows = tuple((clipped(what, 80), f"{times:,}") for what, times in bars)
    return picture(name, title, finding, draw, Data(("what", "times"), rows))


def _bars(metrics: Metrics) -> list[tuple[str, int]]:
    """Most frequent first."""
    bars = [(f"preempted: {reason}", n) for reason, n in metrics.reasons.get("preempted", {}).items()]
    for state in (State.REJECTED, State.TIMED_OUT, State.CANCELLED, State.FAILED):
        bars += [(f"{state.value}: {reason}", n) for reason, n in metrics.reasons.get(state.value, {}).items()]
    return sorted((bar for bar in bars if bar[1]), key=lambda bar: -bar[1])


def client_picture(rows: list[ClientRow], metrics: Metrics) -> Picture:
    """Who suffers?"""
    name, title = "clients", "TTFT by client"
    served = sorted((row for row in rows if row.p99_ttft_s is not None), key=lambda row: -(row.p99_ttft_s or 0))
    if len(served) < 2:
        return left_out(name, title, "The trace names no clients, or only one was served.")
    shown = served if len(served) <= MOST_CLIENTS else served[:WORST_CLIENTS]
    unit, per_s = ("s", 1) if (served[0].p99_ttft_s or 0) >= 10 else ("ms", 1000)
    p50 = [per_s * (row.p50_ttft_s or 0) for row in shown]
    p99 = [per_s * (row.p99_ttft_s or 0) for row in shown]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        places = range(len(shown))
        axes.hlines(places, p50, p99, color=BLUE, linewidth=1)
        axes.plot(p50, places, "o", color=BLUE, markersize=5, label="P50")
        axes.plot(p99, places, "D", color=RED, markersize=5, markerfacecolor="white", label="P99")
        axes.set_yticks(places, [clipped(row.client, 20) for row in shown])
        axes.tick_params(axis="y", labelsize=min(9, 150 / len(shown)))
        plain(axes.get_yticklabels())
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_xlabel(f"TTFT ({unit})")
        if p99[0] > LOG_FROM_RATIO * min(p50) > 0:
            log_x(axes, p99[0] / min(p50))
        else:
            axes.set_xlim(left=0)
            comma(axes.xaxis)
        legend(axes)

    return picture(name, title, _client_finding(served, shown, metrics), draw, _client_data(shown))


def _client_finding(served: list[ClientRow], shown: list[ClientRow], metrics: Metrics) -> str:
    worst, best = served[0], served[-1]
    text = (
        f"Longest P99: {clipped(worst.client, 40)} {number(1000 * (worst.p99_ttft_s or 0))} ms; "
        f"shortest: {clipped(best.client, 40)} {number(1000 * (best.p99_ttft_s or 0))} ms."
    )
    delivered = metrics.value("client_tokens_jain_ratio")
    if delivered is not None:
        text += f" Of the tokens asked for, all get an equal share if Jain's index is 1: it is {delivered:.3f}."
    rest = len(served) - len(shown)
    return text + (f" The worst {len(shown)} of {len(served)} clients are shown." if rest else "")


def _client_data(shown: list[ClientRow]) -> Data:
    head = ("client", "offered", "finished", "output tokens", "of asked", "P50 TTFT ms", "P99 TTFT ms")
    rows = [
        (
            clipped(row.client, 40),
            f"{row.num_offered:,}",
            f"{row.num_finished:,}",
            f"{row.output_tokens:,}",
            percent(row.output_tokens / row.asked_tokens if row.asked_tokens else 0.0),
            number(1000 * (row.p50_ttft_s or 0)),
            number(1000 * (row.p99_ttft_s or 0)),
        )
        for row in shown
    ]
    return Data(head, tuple(rows))
