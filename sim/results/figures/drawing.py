"""The canvas that all figures share: one size, one palette, no global state, the same bytes for the same data."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from sim.results.arrays import FloatArray
from sim.results.wording import number

BLACK, ORANGE, SKY, GREEN, BLUE, RED, PINK = "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"
"""Okabe and Ito's colours for all kinds of eyes, without the yellow that cannot be seen on white."""
GREY = "#767676"

NUM_BINS = 160
"""Of figures over time: about as many as there are pixels to tell apart."""

LOG_FROM_RATIO = 20
"""A scale is logarithmic when the largest value is more than so many medians."""

STYLE: dict[str, Any] = {
    "svg.hashsalt": "tokenwork",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.4,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 1.4,
    "legend.columnspacing": 1.2,
}


@dataclass(frozen=True, slots=True)
class Data:
    """What a figure shows, as a small table."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Picture:
    name: str
    title: str
    finding: str
    """What it shows, in words: caption and text for those who cannot see it."""
    svg: str
    """Empty: left out, and `finding` says why."""
    data: Data = field(default=Data((), ()))
    draw: Callable[[Figure], None] | None = field(default=None, compare=False)
    """Draws it again on another figure."""


def picture(name: str, title: str, finding: str, draw: Callable[[Figure], None], data: Data) -> Picture:
    """Draw and save a figure. The style holds inside only."""
    with in_style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(4.8, 3.0), layout="constrained")
        draw(figure)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    return Picture(name, title, finding, svg[svg.index("<svg") :], data, draw)


def in_style() -> Any:
    """A context in which figures look like ours; nothing is set beyond it."""
    return matplotlib.style.context(STYLE, after_reset=True)


def styled(ax: Axes | None, draw: Callable[[Axes], None]) -> Axes:
    """Draw on given axes, or on a new figure that a notebook shows. The style holds inside only."""
    figure = ax.get_figure(root=True) if ax is not None else shown_figure()
    assert figure is not None
    with in_style():
        axes = ax or figure.add_subplot()
        draw(axes)
    return axes


def shown_figure() -> Figure:
    """A new one that a notebook shows at the end of its cell: pyplot must make it outside the style."""
    import matplotlib.pyplot as plt

    figure: Figure = plt.figure(figsize=(6.4, 4.0), layout="constrained")
    return figure


def left_out(name: str, title: str, why: str) -> Picture:
    return Picture(name, title, why, "")


# -- parts of axes


def legend(axes: Axes, columns: int = 3) -> None:
    """Above the axes, where it hides nothing."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2)


def comma(axis: Any) -> None:
    """1,000 and not 1000 or 1e3."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def log_x(axes: Axes, ratio: float) -> None:
    """`ratio`: of the largest to the smallest value; few decades have room for more ticks."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if ratio < 100 else (1.0,)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    comma(axes.xaxis)


def target_line(axes: Axes, at: float, label: str) -> None:
    """A vertical line with its name above."""
    axes.axvline(at, color=RED, linestyle="--", linewidth=1.2)
    axes.text(at, 1.02, label, color=RED, ha="center", va="bottom", transform=axes.get_xaxis_transform())


def plain(labels: Sequence[Any]) -> None:
    """Dollar signs in foreign names are no formulas."""
    for label in labels:
        label.set_parse_math(False)


def in_rows(head: tuple[str, ...], x: FloatArray, *columns: FloatArray, rows: int = 12) -> Data:
    """Columns over time thinned out to a table that can be read: the mean of neighbouring bins."""
    groups = np.array_split(np.arange(len(x)), min(rows, len(x)))
    cells = [tuple(number(float(column[group].mean())) for column in (x, *columns)) for group in groups]
    return Data(head, tuple(cells))
