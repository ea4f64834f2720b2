"""A model against an engine's log, where single steps are too noisy to judge by: means of like steps, and busy time.

A machine's speed drifts from run to run, so each run gets one speed factor from its beginning, and is judged on the
rest. Like steps: same number of decodes, prefill tokens in the same band, summed context in the same thousand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calibrate.evidence import MeasuredStep, Series
from costmodel.model import CostModel
from costmodel.shape import StepShape

FloatArray = npt.NDArray[np.float64]

FACTOR_SHARE = 1 / 5
"""Of a run's steps: what the speed factor is taken from."""
PREFILL_EDGES = (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Bands end at these numbers of prefill tokens."""
CONTEXT_BIN_TOKENS = 1024
LEAST_LIKE = 20
"""Fewer steps have no mean worth the name."""


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """One run after its factor was applied, without the steps that gave the factor."""

    name: str
    speed_factor: float
    """Median of measured / predicted over the first fifth: above 1, the machine was slower than the profile's."""
    steps: tuple[MeasuredStep, ...]
    predicted: FloatArray
    measured: FloatArray

    @property
    def total_ratio(self) -> float:
        """Predicted over measured busy time, less 1."""
        return float(self.predicted.sum() / self.measured.sum() - 1)

    @property
    def step_mape_ratio(self) -> float:
        return float(np.abs(self.predicted / self.measured - 1).mean())


@dataclass(frozen=True, slots=True)
class LikeMeans:
    """Errors of the means of like steps."""

    mape_ratio: float
    """Every kind of like steps counts the same."""
    weighted_mape_ratio: float
    """By the number of steps."""
    num_kinds: int
    covered_ratio: float
    """Share of steps that have enough like them."""


def judge_run(model: CostModel, series: Series) -> JudgedRun:
    predicted = np.array([model.seconds(step.shape) for step in series.steps])
    measured = np.array([step.median_s for step in series.steps])
    cut = max(1, int(len(measured) * FACTOR_SHARE))
    factor = float(np.median(measured[:cut] / predicted[:cut]))
    return JudgedRun(series.name, factor, series.steps[cut:], predicted[cut:] * factor, measured[cut:])


def like_means(runs: Sequence[JudgedRun]) -> LikeMeans | None:
    """Over all runs together; None if no kind of step occurs often enough."""
    kinds: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
    for run in runs:
        for step, pair in zip(run.steps, zip(run.predicted, run.measured, strict=True), strict=True):
            kinds.setdefault(_kind(step.shape), []).append(pair)
    often = [np.array(pairs) for pairs in kinds.values() if len(pairs) >= LEAST_LIKE]
    if not often:
        return None
    counts = np.array([len(pairs) for pairs in often])
    means = np.array([pairs.mean(axis=0) for pairs in often])
    errors = np.abs(means[:, 0] / means[:, 1] - 1)
    return LikeMeans(
        mape_ratio=float(errors.mean()),
        weighted_mape_ratio=float(np.average(errors, weights=counts)),
        num_kinds=len(often),
        covered_ratio=float(counts.sum() / sum(len(run.measured) for run in runs)),
    )


def total_ratio(runs: Sequence[JudgedRun]) -> float:
    """Predicted over measured busy time of all runs, less 1."""
    return float(sum(run.predicted.sum() for run in runs) / sum(run.measured.sum() for run in runs) - 1)


def step_mape_ratio(runs: Sequence[JudgedRun]) -> float:
    return float(np.concatenate([np.abs(run.predicted / run.measured - 1) for run in runs]).mean())


def like_text(runs: Sequence[JudgedRun]) -> str:
    """A line per run, and one for all together."""
    width = max(len(run.name) for run in runs)
    lines = [f"{'run':<{width}}  speed factor  steps judged  step MAPE  total busy time  means of like steps"]
    for run in runs:
        lines.append(_line(f"{run.name:<{width}}  {run.speed_factor:>12.3f}", [run]))
    lines.append(_line(f"{'all':<{width}}  {'':>12}", runs))
    return "\n".join(lines)


def _line(head: str, runs: Sequence[JudgedRun]) -> str:
    like = like_means(runs)
    count = sum(len(run.measured) for run in runs)
    means = (
        f"{like.mape_ratio:.1%} over {like.num_kinds} kinds, {like.covered_ratio:.0%} of steps"
        if like
        else f"no {LEAST_LIKE} like steps"
    )
    return f"{head}  {count:>12,}  {step_mape_ratio(runs):>9.1%}  {total_ratio(runs):>+15.1%}  {means}"


def _kind(shape: StepShape) -> tuple[int, int, int]:
    context = shape.decode_context_tokens + sum(context for _, context in shape.prefill)
    band = int(np.searchsorted(PREFILL_EDGES, shape.prefill_tokens))
    return shape.decode_requests, band, context // CONTEXT_BIN_TOKENS
