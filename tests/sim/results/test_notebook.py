"""What a run shows of itself in a notebook: consistent tables, axes, a small summary."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import matplotlib as mpl
import numpy as np
import pytest

from sim.results.run import RunResult
from sim.results.story import Story

HOSTILE = "<script>alert(1)</script>\x1b[31m=cmd"


@pytest.fixture(autouse=True)
def _no_screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MPLBACKEND", "agg")
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def test_metrics_are_those_of_the_catalog(busy: RunResult) -> None:
    for name, row in busy.computed.rows.items():
        statistic, _, spread = name.partition("_")
        at = (spread, statistic) if spread in busy.metrics.index and name not in busy.metrics.index else (name, "value")
        shown = busy.metrics.loc[at[0], at[1]]
        assert np.isnan(shown) if row.value is None else shown == row.value


def test_the_timeline_counts_everybody(busy: RunResult) -> None:
    line = busy.timeline(0.25)
    assert line["arrived"].sum() == busy.computed.value("num_offered")
    assert line["finished"].sum() == busy.computed.value("num_finished")
    waited_s = (line["waiting"] * 0.25).sum()
    assert waited_s == pytest.approx(busy.blocked.sum())
    with pytest.raises(ValueError, match="bin_s must be > 0"):
        busy.timeline(0)


def test_other_targets_need_no_other_run(busy: RunResult) -> None:
    lenient = busy.with_slo(ttft=1e6)
    assert lenient.computed.value("slo_met_finished_ratio") == 1.0
    assert lenient.scenario["slo"] == {"ttft_s": 1e6, "tpot_s": None, "e2e_s": None}
    assert busy.slo.ttft_s == 0.5


def test_a_request_is_explained(busy: RunResult) -> None:
    told = busy.explain("r0")
    assert isinstance(told, Story)
    assert told.moments


def test_the_summary_is_small_and_nothing_in_it_acts(busy_run: Callable[..., RunResult]) -> None:
    run = busy_run(hostile=HOSTILE)
    html = run._repr_html_()
    assert len(html) < 10_000
    assert "<script" not in html
    assert "\x1b" not in html
    assert "\x1b" not in repr(run)


def test_figures_are_axes_and_set_nothing_globally(busy: RunResult) -> None:
    before = dict(mpl.rcParams)
    axes = busy.plot.cdf("ttft", by="client")
    assert len(axes.get_lines()) >= 3
    assert busy.plot.cdf("tpot", slo=0.01, ax=axes) is axes
    for figure in (busy.plot.backlog, busy.plot.blocked, busy.plot.kv, busy.plot.batch, busy.plot.steps):
        assert figure()
    assert dict(mpl.rcParams) == before
    with pytest.raises(ValueError, match="latency must be one of"):
        busy.plot.cdf("itl")
    with pytest.raises(ValueError, match="by must be 'client' or None"):
        busy.plot.cdf(by="engine")


def test_nothing_served_is_drawn_as_nothing(run_by_hand: Callable[..., RunResult]) -> None:
    run = run_by_hand([])
    assert not run.plot.cdf().axison
    assert "NaN" not in run._repr_html_()
