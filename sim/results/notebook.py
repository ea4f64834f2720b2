"""What a run shows of itself in a notebook: tables, figures, a summary. Everything is computed when it is asked for."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sim.results.wording import count, visible

if TYPE_CHECKING:
    import pandas as pd

    from sim.results.figures.plots import RunPlots
    from sim.results.measure import Measured
    from sim.results.metrics import Metrics
    from sim.results.run import RunResult
    from sim.results.story import Story


class InNotebooks:
    """The side of a `RunResult` that people look at. Missing values are NaN, never 0; units stand in names."""

    @property
    def _run(self) -> RunResult:
        return cast("RunResult", self)

    @cached_property
    def measured(self) -> Measured:
        """The books as times per request; what metrics and figures are computed from."""
        from sim.results.measure import Measured

        return Measured(self._run)

    @cached_property
    def computed(self) -> Metrics:
        """All metrics with their states; `run.computed.value("p99_ttft_s")`."""
        from sim.results.metrics import compute

        return compute(self.measured)

    @property
    def state(self) -> str:
        """STABLE, UNSTABLE, PARTIAL, ...: how far to trust the figures."""
        return self.computed.verdict.state.value

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Index: metric. Columns: value, or mean p50 p90 p95 p99 max where there is a distribution; n, unit, state."""
        from sim.results.overview import metric_table

        return metric_table(self.computed)

    @cached_property
    def request_table(self) -> pd.DataFrame:
        """A row per request: arrival_s queue_s ttft_s tpot_s e2e_s ... end reason client slo_met."""
        from sim.results.tables import request_table

        return request_table(self.measured)

    @cached_property
    def step_table(self) -> pd.DataFrame:
        """A row per plan: its first step's shape, and how many steps it came to."""
        from sim.results.tables import step_table

        return step_table(self.measured)

    def timeline(self, bin_s: float = 1.0) -> pd.DataFrame:
        """Means over bins of time: waiting requests, batch, KV blocks; requests that came and that finished."""
        from sim.results.overview import timeline_table

        return timeline_table(self.measured, bin_s)

    @property
    def blocked(self) -> pd.Series[float]:
        """Seconds that requests waited before their first admission, by what blocked them."""
        import pandas as pd

        from sim.results.blocked import WAITED_FOR

        waited = {b.value: self.computed.value(f"queue_{b.value}_s") or 0.0 for b in WAITED_FOR}
        return pd.Series(waited, name="waited_s")

    def with_slo(self, *, ttft: float | None = None, tpot: float | None = None, e2e: float | None = None) -> RunResult:
        """The same run judged by other targets, in seconds; nothing is replayed."""
        from sim.results.run import Slo

        slo = Slo(ttft, tpot, e2e)
        scenario = {**self._run.scenario, "slo": {"ttft_s": ttft, "tpot_s": tpot, "e2e_s": e2e}}
        return replace(self._run, slo=slo, scenario=scenario)

    def explain(self, request_id: str) -> Story:
        """What happened to a request and why: its moments, and what it waited for."""
        from sim.results.story import story

        return story(self.measured, request_id)

    @property
    def plot(self) -> RunPlots:
        """Figures: `.cdf("ttft", by="client")`, `.backlog()`, `.blocked()`, `.kv()`, `.batch()`, `.steps()`."""
        from sim.results.figures.plots import RunPlots

        return RunPlots(self._run)

    def report(self, folder: Path | str) -> None:
        """Write report.html, report.md, metrics.json and the tables. An existing folder is replaced."""
        from sim.results.report import write_report

        write_report(self.measured, Path(folder))

    def __repr__(self) -> str:
        run = self._run
        engines = ", ".join(dict.fromkeys(facts.name for facts in run.engines))
        return f"<run of {visible(run.trace.name)} on {visible(engines)}: {count(len(run.trace), 'request')}>"

    def _repr_html_(self) -> str:
        from sim.results.overview import notebook_html

        return notebook_html(self.measured, self.computed)
