"""An engine that answers every request with its number: a recorder and recordings of it."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from sim.conformance import RECORDERS, Log, NotCovered, Recorder, Scenario


class FakeRecorder(Recorder):
    """Counts down from `input["tokens"]`. A run's request ids are drawn anew, times are noisy in the last digits."""

    compared: ClassVar[tuple[str, ...]] = ("step", "left", "who", "took_s", "batch", "over", "total")
    printed: ClassVar[tuple[str, ...]] = ("guess", "metrics")
    unverified: ClassVar[tuple[str, ...]] = ("counting up",)

    def emit(self, input: dict[str, Any], *, max_stretch: int = 1) -> Log:
        if input.get("speculation"):
            raise NotCovered("speculation")
        tokens = input["tokens"]
        steps: list[dict[str, Any]] = [
            {"step": at, "left": tokens - at, "who": (70,), "took_s": 0.1 + 0.2, "batch": [{"id": at, "n": {1: 2}}]}
            for at in range(tokens)
        ]
        steps[-1]["over"] = True
        return {"steps": [{**step, "guess": 1} for step in steps], "total": {0: tokens}, "metrics": {"mean": 1}}

    def comparable(self, log: Log) -> Log:
        steps = [{**step, "who": len(step["who"]), "took_s": round(step["took_s"], 9)} for step in log["steps"]]
        return {**log, "steps": steps}


def recorded(tokens: int = 3) -> Log:
    """What a real one would have logged; each call makes a new one."""
    steps: list[dict[str, Any]] = [
        {"step": at, "left": tokens - at, "who": [12], "took_s": 0.3, "batch": [{"id": at, "n": {"1": 2}}], "guess": 1}
        for at in range(tokens)
    ]
    steps[-1]["over"] = True
    return {"steps": steps, "total": {"0": tokens}, "metrics": {"mean": 1}}


def scenario(name: str = "three", *, tokens: int = 3, output: Log | None = None, **input: Any) -> Scenario:
    return Scenario("fake", "fake==1.0", name, {"tokens": tokens, **input}, output or recorded(tokens))


def register(patch: pytest.MonkeyPatch) -> None:
    """Let the engine have a recorder for one test."""
    patch.setattr(RECORDERS, "_makers", {**RECORDERS._makers, "fake": FakeRecorder})
