"""Figures: small, the same bytes, whole with little data, and without side effects."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from xml.etree import ElementTree as ET

import matplotlib as mpl
import pytest

from sim.results.figures.album import album
from sim.results.figures.drawing import Picture
from sim.results.measure import Measured
from sim.results.metrics import compute
from sim.results.run import RunResult

Runs = Callable[..., RunResult]

MOST_BYTES = 60_000


def pictures(run: RunResult) -> dict[str, Picture]:
    measured = Measured(run)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return {one.name: one for one in album(measured, compute(measured))}


def test_a_run_with_everything_has_all_figures(busy: RunResult) -> None:
    found = pictures(busy)
    assert len(found) == 10
    for one in found.values():
        assert one.svg, one.name
        assert len(one.svg) < MOST_BYTES, one.name
        assert one.finding.endswith(".")
        assert one.data.rows
        ET.fromstring(one.svg)


def test_the_same_data_give_the_same_bytes(busy: RunResult) -> None:
    assert pictures(busy) == pictures(busy)


@pytest.mark.parametrize("count", [0, 1, 5, 30])
def test_little_data_are_drawn_or_said(run_by_hand: Runs, count: int) -> None:
    rows = [{"token_s": [at + 0.1, at + 0.3], "arrival_s": float(at)} for at in range(count)]
    found = pictures(run_by_hand(rows))
    assert found["backlog"].svg
    assert bool(found["cdf-ttft" if count else "ttft"].svg) == (count > 0)
    assert found["blocked"].finding.startswith("Waiting is 0 %")
    assert found["lost"].finding == "No request was rejected, timed out, cancelled, lost or preempted."


def test_a_long_run_stays_small(busy_run: Runs) -> None:
    for one in pictures(busy_run(3000)).values():
        assert len(one.svg) < MOST_BYTES, one.name


def test_foreign_names_are_no_formulas_and_no_markup(busy_run: Runs) -> None:
    svg = pictures(busy_run(hostile="$\\frac{1}{0}$<script>"))["clients"].svg
    assert "<scr" not in svg
    assert "$\\frac{1}{0}$&lt;scrip" in svg


def test_no_setting_of_matplotlib_is_touched(busy: RunResult) -> None:
    before = dict(mpl.rcParams)
    pictures(busy)
    assert dict(mpl.rcParams) == before


def test_users_settings_do_not_change_the_figures(busy: RunResult) -> None:
    plain = pictures(busy)["kv"].svg
    with mpl.rc_context({"font.size": 20, "axes.facecolor": "black", "svg.fonttype": "path"}):
        assert pictures(busy)["kv"].svg == plain
