"""A panel of sliders for notebooks: turn one knob of an engine or of the load and see what becomes of the latencies.

`WhatIf` is the logic and knows no widgets; `panel` puts sliders before it and needs the extra `notebooks`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sim.engines import ENGINES, EngineConfig
from sim.replay import replay
from sim.results.arrays import FloatArray
from sim.results.render import filled
from sim.results.run import RunResult
from sim.results.summary import value
from sim.results.wording import visible
from sim.scenario import Scenario, ScenarioError, make_scenario

FLAGS = {
    "budget": ("max_num_batched_tokens", "token_budget", "max_prefill_tokens", "max_work"),
    "slots": ("max_num_seqs", "slots", "max_running_requests"),
    "blocks": ("num_gpu_blocks_override", "num_blocks"),
    "chunk": ("long_prefill_token_threshold", "chunk_cap", "chunked_prefill_size"),
}
"""Knob -> its names among engines' flags; the first that an engine has is turned."""
CHOICES: dict[str, tuple[float, ...]] = {
    "budget": (256, 512, 1024, 2048, 4096, 8192, 16384),
    "slots": (4, 8, 16, 32, 64, 128, 256, 512, 1024),
    "chunk": (256, 512, 1024, 2048, 4096),
    "rate": (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0),
}
POOL_SHARES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
"""Blocks to choose from, as shares of the pool that the scenario has."""

ROWS = (
    ("goodput, req/s", "goodput_per_s", 1),
    ("SLO met", "slo_met_offered_ratio", 1),
    ("TTFT P50, ms", "p50_ttft_s", 1000),
    ("TTFT P99, ms", "p99_ttft_s", 1000),
    ("TPOT P99, ms", "p99_tpot_s", 1000),
    ("output, tok/s", "output_tokens_per_s", 1),
    ("preemptions", "num_preemptions", 1),
    ("KV blocks used, highest", "max_kv_used_ratio", 1),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a setting of the knobs comes to."""

    scenario: Scenario
    run: RunResult | None
    """None where the setting makes no sense; `problem` says why."""
    problem: str = ""


class WhatIf:
    """Answers by setting, each replayed once."""

    def __init__(self, scenario: Scenario | Mapping[str, Any]) -> None:
        self.base = scenario if isinstance(scenario, Scenario) else make_scenario(dict(scenario))
        self._answers: dict[str, Answer] = {}
        self.pinned: RunResult | None = None
        """To be compared with; grey in figures."""

    @property
    def knobs(self) -> dict[str, tuple[float | None, ...]]:
        """Knob -> what it can be set to; None leaves the scenario's own."""
        found: dict[str, tuple[float | None, ...]] = {"rate": CHOICES["rate"]}
        for knob in FLAGS:
            if self._flag(knob) is not None:
                found[knob] = (None, *self._choices(knob))
        return found

    def _choices(self, knob: str) -> tuple[float, ...]:
        if knob != "blocks":
            return CHOICES[knob]
        run = self.answer().run
        total = run.engines[0].total_blocks if run is not None else 1
        return tuple(sorted({max(2, round(share * total)) for share in POOL_SHARES}))

    def _flag(self, knob: str) -> str | None:
        config: type[EngineConfig] = ENGINES.maker(self.base.engine.preset)  # type: ignore[assignment]
        return next((flag for flag in FLAGS[knob] if flag in config.model_fields), None)

    def scenario(self, **settings: float | None) -> Scenario:
        """The base with knobs turned. Raises ScenarioError."""
        description = self.base.model_dump(mode="json")
        for knob, setting in settings.items():
            if setting is None:
                continue
            if knob == "rate":
                description["rate_scale"] = self.base.rate_scale * setting
            elif (flag := self._flag(knob)) is not None:
                description["engine"][flag] = int(setting)
            else:
                raise ScenarioError(f"this engine has no {knob}")
        return make_scenario(description)

    def answer(self, **settings: float | None) -> Answer:
        """Replayed, or remembered."""
        try:
            scenario = self.scenario(**settings)
            key = scenario.model_dump_json()
            if key not in self._answers:
                self._answers[key] = Answer(scenario, replay(scenario))
            return self._answers[key]
        except ValueError as error:
            return Answer(self.base, None, str(error))

    def html(self, answer: Answer) -> str:
        """The figures that matter, beside the pinned run's."""
        if answer.run is None:
            return filled("panel.html", problem=visible(answer.problem), states=[], rows=[])
        runs = [answer.run] if self.pinned is None else [answer.run, self.pinned]
        rows = [(label, [_cell(run, metric, per) for run in runs]) for label, metric, per in ROWS]
        return filled("panel.html", problem="", states=[run.state for run in runs], rows=rows)

    def png(self, answer: Answer) -> bytes:
        """TTFT and TPOT of offered requests, and waiting requests over time; the pinned run in grey."""
        from matplotlib.figure import Figure

        from sim.results.figures.drawing import in_style

        runs = [run for run in (self.pinned, answer.run) if run is not None]
        out = io.BytesIO()
        with in_style():
            figure = Figure(figsize=(10.5, 2.9), layout="constrained", dpi=90)
            _draw(figure, runs, ghost=self.pinned)
            figure.savefig(out, format="png")
        return out.getvalue()


def _cell(run: RunResult, metric: str, per_unit: float) -> str:
    row = run.computed[metric]
    return value(row if row.value is None or per_unit == 1 else replace(row, value=row.value * per_unit))


def _draw(figure: Any, runs: Sequence[RunResult], *, ghost: RunResult | None) -> None:
    from sim.results.figures.drawing import BLUE, GREY
    from sim.results.figures.load import finish
    from sim.results.figures.tail import Line, draw_tail, scale_x
    from sim.results.measure import NS_PER_S
    from sim.results.timeline import band, edges_ns, seconds, waiting

    axes = figure.subplots(1, 3)
    looks = [("pinned", GREY, "--") if run is ghost else ("now", BLUE, "-") for run in runs]
    for at, (name, words) in enumerate((("ttft", "TTFT"), ("tpot", "TPOT"))):
        lines = []
        for run, (label, colour, style) in zip(runs, looks, strict=True):
            time_ns = run.measured.ttft_ns if name == "ttft" else run.measured.tpot_ns
            known = run.measured.served & ~np.isnan(time_ns)
            values: FloatArray = np.sort(time_ns[known] / NS_PER_S * 1000)
            if len(values):
                unknown = int((run.measured.served & ~known).sum())
                lines.append(Line(label, values, run.measured.num_offered - unknown, colour, style))
        if lines:
            target_s = getattr(runs[-1].slo, f"{name}_s")
            target = None if target_s is None else 1000 * target_s
            draw_tail(axes[at], lines)
            scale_x(axes[at], lines, f"{words} (ms)", target, f"SLO {target or 0:,.4g} ms")
    for run, (label, colour, style) in zip(runs, looks, strict=True):
        edges = edges_ns(run.measured, 100)
        axes[2].plot(seconds(edges), band(waiting(run.measured), edges).mean, style, color=colour, label=label)
    finish(axes[2], "waiting requests")


# -- widgets


def panel(scenario: Scenario | Mapping[str, Any]) -> Any:
    """A widget to be shown as the last line of a cell. Raises ImportError without ipywidgets."""
    import ipywidgets

    asked = WhatIf(scenario)
    sliders = {knob: _slider(knob, choices) for knob, choices in asked.knobs.items()}
    table, image = ipywidgets.HTML(), ipywidgets.Image(format="png", width=945, height=261)
    pin, copy = ipywidgets.Button(description="Pin"), ipywidgets.Button(description="Copy scenario")
    text = ipywidgets.Textarea(layout={"width": "100%", "height": "160px", "display": "none"})

    def current() -> Answer:
        return asked.answer(**{knob: slider.value or None for knob, slider in sliders.items()})

    def show(_: object = None) -> None:
        answer = current()
        table.value = asked.html(answer)
        if answer.run is not None:
            image.value = asked.png(answer)

    def keep(_: object) -> None:
        asked.pinned = current().run
        show()

    def spell_out(_: object) -> None:
        text.value = json.dumps(current().scenario.model_dump(mode="json"), indent=1)
        text.layout.display = "block"

    for slider in sliders.values():
        slider.observe(show, names="value")
    pin.on_click(keep)
    copy.on_click(spell_out)
    show()
    buttons = ipywidgets.HBox([pin, copy])
    left = ipywidgets.VBox([*sliders.values(), buttons], layout={"min_width": "340px"})
    return ipywidgets.VBox([ipywidgets.HBox([left, table], layout={"flex_flow": "row wrap"}), image, text])


def _slider(knob: str, choices: Sequence[float | None]) -> Any:
    """Its value is a number; 0 stands for what the scenario has."""
    import ipywidgets

    options = [
        ("as it is" if choice is None else f"x{choice:g}" if knob == "rate" else f"{choice:,.0f}", choice or 0)
        for choice in choices
    ]
    return ipywidgets.SelectionSlider(
        options=options, value=1.0 if knob == "rate" else 0, description=knob, continuous_update=False
    )
