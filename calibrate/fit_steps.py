"""Token weights of measured steps, with what a reader must know before trusting them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibrate.evidence import Evidence, EvidenceError, MeasuredStep, noise_floor_ratio, refuse_mixed
from calibrate.fit import MEASURED_FEATURES, Candidates, FloatArray, fit_few_weights, held_out_predictions, in_words
from calibrate.regions import largest_decade, region
from costmodel.features import feature_matrix
from costmodel.profile import Weight

LEAST_STEPS = 30
LEAST_STEPS_PER_WEIGHT = 5
HIGH_CONDITION = 30.0
"""Of the columns at unit length: from there on weights trade places under noise of a few percent."""
HIGH_LEVERAGE = 0.5
NOISY_RATIO = 0.10
MISFIT_FACTOR = 1.5
SMALLEST_REST = 0.01
"""Of a step's time is left to the fit at least, should a fixed weight claim all of it."""


@dataclass(frozen=True, slots=True)
class FittedSteps:
    """The result of a fit: weights by feature, predictions within and held out, and its warnings."""

    candidates: Candidates
    weights: FloatArray
    """Shape: (candidates,); 0 where a feature was not needed."""
    steps: tuple[MeasuredStep, ...]
    seconds: FloatArray
    """Medians."""
    regions: tuple[str, ...]
    predicted: FloatArray
    held_out: FloatArray
    """Each step by weights that have not seen its region; NaN where there is one region only."""
    decade: tuple[str, np.ndarray, FloatArray]
    """The largest decade of tokens: its name, which steps, and their seconds by weights fitted to the others."""
    noise_ratio: float | None
    condition: float
    warnings: tuple[str, ...]


def fit_steps(
    evidence: Evidence, candidates: Candidates = MEASURED_FEATURES, fixed: Sequence[Weight] = ()
) -> FittedSteps:
    """Fit what the `fixed` weights leave of the steps' times.

    Raises EvidenceError where the steps are too few, or from files that do not go together.
    """
    refuse_mixed(evidence.series)
    steps = evidence.steps
    if len(steps) < LEAST_STEPS:
        raise EvidenceError(
            f"{evidence.series[0].name}: {len(steps)} measured steps, a fit needs >= {LEAST_STEPS}: measure longer"
        )
    matrix = feature_matrix([step.shape for step in steps], [feature for feature, _ in candidates])
    seconds = np.array([step.median_s for step in steps])
    regions = tuple(region(step.shape) for step in steps)
    known = _fixed_seconds(steps, fixed)
    rest = np.maximum(seconds - known, SMALLEST_REST * seconds)
    weights = fit_few_weights(matrix, rest, regions)
    predicted = matrix @ weights + known
    noise = noise_floor_ratio(steps, evidence.like_context_tokens)
    columns = _columns(matrix, weights)
    condition = float(np.linalg.cond(columns))
    name, large = largest_decade(steps)
    return FittedSteps(
        candidates=candidates,
        weights=weights,
        steps=steps,
        seconds=seconds,
        regions=regions,
        predicted=predicted,
        held_out=_by_region(matrix, rest, regions) + known,
        decade=(name, large, _without(matrix, rest, regions, large) + known[large]),
        noise_ratio=noise,
        condition=condition,
        warnings=tuple(_warnings(steps, columns, condition, noise, np.abs(predicted / seconds - 1).mean())),
    )


def _fixed_seconds(steps: Sequence[MeasuredStep], fixed: Sequence[Weight]) -> FloatArray:
    """What weights that are not fitted make of each step."""
    matrix = feature_matrix([step.shape for step in steps], [w.term().feature for w in fixed])
    return np.asarray(matrix @ np.array([w.s_per_unit for w in fixed]))


def _by_region(matrix: FloatArray, seconds: FloatArray, regions: Sequence[str]) -> FloatArray:
    """Seconds of each step by weights fitted to the other regions; NaN where there is no other."""
    if len(set(regions)) < 2:
        return np.full(len(seconds), np.nan)
    return held_out_predictions(matrix, seconds, regions, fit_few_weights)


def _without(matrix: FloatArray, seconds: FloatArray, regions: Sequence[str], held: np.ndarray) -> FloatArray:
    """Seconds of the steps held out by weights fitted to the others; NaN where too few would be left."""
    if (~held).sum() < LEAST_STEPS:
        return np.full(int(held.sum()), np.nan)
    weights = fit_few_weights(matrix[~held], seconds[~held], np.array(regions)[~held].tolist())
    return np.asarray(matrix[held] @ weights)


def _columns(matrix: FloatArray, weights: FloatArray) -> FloatArray:
    """What the last round of the fit has solved for: used features relative to the prediction, at unit length."""
    scaled = matrix[:, weights > 0] / (matrix @ weights)[:, None]
    return np.asarray(scaled / np.linalg.norm(scaled, axis=0))


def _warnings(
    steps: Sequence[MeasuredStep], columns: FloatArray, condition: float, noise: float | None, error: float
) -> list[str]:
    found = []
    if len({region(step.shape) for step in steps}) < 2:
        found.append("all steps are of one region: nothing could be held out, so errors of other steps are unknown")
    if len(steps) < LEAST_STEPS_PER_WEIGHT * columns.shape[1]:
        found.append(f"{len(steps)} steps for {columns.shape[1]} weights: measure more of them")
    if condition > HIGH_CONDITION:
        found.append(
            f"condition number {condition:.0f} (> {HIGH_CONDITION:.0f}): features go up and down together in these "
            "steps, so sums of weights are known better than single ones"
        )
    orthogonal, _ = np.linalg.qr(columns)
    leverage = (orthogonal**2).sum(axis=1)
    decisive = np.flatnonzero(leverage > HIGH_LEVERAGE)
    if len(decisive):
        worst = steps[int(np.argmax(leverage))].shape
        found.append(
            f"{len(decisive)} of {len(steps)} steps nearly decide a weight alone (leverage > {HIGH_LEVERAGE}), first: "
            f"{in_words(worst)}: measure more like it"
        )
    if noise is None:
        found.append("no step was repeated: how noisy the machine is, is unknown; repeat some")
    elif noise > NOISY_RATIO:
        found.append(
            f"noise floor {noise:.1%}: samples of the same step differ that much; close other programs, fix clocks and "
            "run `tokenwork calibrate run` again, or for longer"
        )
    if noise is not None and error > MISFIT_FACTOR * noise:
        found.append(
            f"the fit is wrong by {error:.1%} where noise explains {noise:.1%}: something costs time that no feature "
            "has; `tokenwork calibrate check` says where"
        )
    return found
