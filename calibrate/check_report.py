"""What `calibrate check` prints: errors by region, of medians and of single samples, and what noise alone explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from calibrate.evidence import LEAST_ANEW, Evidence, EvidenceError, MeasuredStep, noise_floor_ratio
from calibrate.fit import MEASURED_FEATURES, FloatArray, fit_few_weights, held_out_predictions, region_errors
from calibrate.fit_steps import LEAST_STEPS
from calibrate.regions import KINDS, SKEWED_RATIO, held_out_mask, kind, region, region_order
from costmodel.features import feature_matrix
from costmodel.profile import Profile, RegionError
from costmodel.token_weights import TokenWeightsModel

ALLOWED_FACTOR = 1.5
"""An error of single samples within so many times the noise floor is as good as can be told from the noise."""


def check_text(profile: Profile, model: TokenWeightsModel, evidence: Evidence) -> str:
    """Errors of a profile as it is."""
    steps = evidence.steps
    if not steps:
        raise EvidenceError(f"{evidence.series[0].name}: no step in it was measured")
    predicted = np.array([model.seconds(step.shape) for step in steps])
    lines = [f"profile {profile.name} against {', '.join(s.name for s in evidence.series)}: {_seen(profile, evidence)}"]
    if profile.device != evidence.device:
        lines.append(f"another device: {profile.device} in the profile, {evidence.device} here")
    beyond = sum(model.out_of_range(step.shape) is not None for step in steps)
    if beyond:
        lines.append(f"{beyond} of {len(steps)} steps are outside the profile's range")
    return "\n".join(lines) + "\n\n" + judged_text(predicted, steps, evidence)


def _seen(profile: Profile, evidence: Evidence) -> str:
    """By hash. A run that went on has other contents under the same name."""
    fitted = {file.sha256: file.path for file in profile.provenance.files}
    if any(series.file.sha256 in fitted for series in evidence.series):
        return "the fit has seen these steps"
    if any(series.name in fitted.values() for series in evidence.series):
        return "the fit has not seen this file, but one of the same name: perhaps an earlier part of it"
    return "the fit has not seen these steps"


def held_out_text(evidence: Evidence, holdout: str | None) -> str:
    """The fit repeated without the steps it is judged by: each region in turn, or those that `holdout` names."""
    steps = evidence.steps
    if len(steps) < LEAST_STEPS:
        raise EvidenceError(f"{evidence.series[0].name}: {len(steps)} steps, holding out needs >= {LEAST_STEPS}")
    matrix = feature_matrix([step.shape for step in steps], [feature for feature, _ in MEASURED_FEATURES])
    seconds = np.array([step.median_s for step in steps])
    regions = [region(step.shape) for step in steps]
    if holdout is None:
        if len(set(regions)) < 2:
            raise EvidenceError(f"{evidence.series[0].name}: steps of one region only, nothing can be held out")
        predicted = held_out_predictions(matrix, seconds, regions, fit_few_weights)
        title = "held out: each region predicted by a fit to the others"
        return f"{title}\n{judged_text(predicted, steps, evidence)}"
    name, held = held_out_mask(holdout, steps)
    if not held.any() or (~held).sum() < LEAST_STEPS:
        raise EvidenceError(f"--holdout {holdout!r} leaves {(~held).sum()} of {len(steps)} steps to fit to")
    weights = fit_few_weights(matrix[~held], seconds[~held], np.array(regions)[~held].tolist())
    inside = [step for step, out in zip(steps, held, strict=True) if out]
    title = f"held out: {name}, predicted by a fit to the other {(~held).sum()} steps"
    return f"{title}\n{judged_text(matrix[held] @ weights, inside, evidence)}"


def judged_text(predicted: FloatArray, steps: Sequence[MeasuredStep], evidence: Evidence) -> str:
    """By region, by kind and for all: errors of medians; and of single samples beside their noise back to back."""
    like_context_tokens = evidence.like_context_tokens
    seconds = np.array([step.median_s for step in steps])
    kinds = np.array([kind(step.shape) for step in steps])
    in_place = [replace(step, rounds=1) for step in steps]
    *rows, total = region_errors(predicted, seconds, [region(step.shape) for step in steps])
    rows.sort(key=lambda row: region_order(row.region))
    lines = [f"{'':<34}  of medians, predicted/measured - 1{'':<12}  of single samples"]
    lines.append(f"{'region':<34}  steps   MAPE  median    P90  worst    bias   MAPE  noise  times the noise")
    places = [np.array([region(step.shape) == row.region for step in steps]) for row in rows]
    for row, inside in zip(rows, places, strict=True):
        lines.append(_line(row.region, row, predicted, in_place, inside, like_context_tokens))
    for name in KINDS:
        inside = kinds == name
        if inside.any() and len(set(kinds)) > 1:
            (row, _) = region_errors(predicted[inside], seconds[inside], [name] * int(inside.sum()))
            lines.append(_line(f"all {name}", row, predicted, in_place, inside, like_context_tokens))
    lines.append(_line("all", total, predicted, in_place, np.ones(len(steps), dtype=bool), like_context_tokens))
    return "\n".join([*lines, *_skew(predicted, seconds, steps), *_verdict(predicted, steps, evidence)])


def _skew(predicted: FloatArray, seconds: FloatArray, steps: Sequence[MeasuredStep]) -> list[str]:
    """What uneven decode batches suffer from a shape that has only the sum of their contexts."""
    skewed = np.array([step.skew_ratio >= SKEWED_RATIO for step in steps])
    if not skewed.any() or skewed.all():
        return []
    errors = predicted / seconds - 1
    sides = (
        f"{name} {np.abs(errors[side]).mean():.1%} (bias {errors[side].mean():+.1%}, {side.sum()} steps)"
        for name, side in (("these", skewed), ("all others", ~skewed))
    )
    return [
        f"a step's shape has only the sum of its decode contexts; where the longest is {SKEWED_RATIO:g} times the mean "
        f"or more, MAPE: {', '.join(sides)}"
    ]


def _verdict(predicted: FloatArray, steps: Sequence[MeasuredStep], evidence: Evidence) -> list[str]:
    """Mixed steps, verifications included, beside the noise floor of all that was measured, drift included."""
    mixed = np.array([kind(step.shape).startswith("mixed") for step in steps])
    floor = noise_floor_ratio(evidence.steps, evidence.like_context_tokens)
    if not mixed.any() or not floor:
        return []
    error = sample_mape_ratio(predicted[mixed], [step for step, yes in zip(steps, mixed, strict=True) if yes])
    anew = sum(step.rounds > 1 for step in evidence.steps)
    what = f"{anew} steps measured anew later in the run" if anew >= LEAST_ANEW else "samples back to back"
    verdict = "within" if error <= ALLOWED_FACTOR * floor else "beyond"
    return [
        f"mixed steps (with verification): single samples wrong by {error:.1%}, noise floor {floor:.1%} ({what}): "
        f"{error / floor:.2f} times it, {verdict} {ALLOWED_FACTOR}"
    ]


def sample_mape_ratio(predicted: FloatArray, steps: Sequence[MeasuredStep]) -> float:
    """Mean relative error of predictions of single samples, every step weighing the same."""
    pairs = zip(predicted.tolist(), steps, strict=True)
    return float(np.mean([np.mean(np.abs(seconds / np.array(step.seconds) - 1)) for seconds, step in pairs]))


def _line(
    name: str,
    row: RegionError,
    predicted: FloatArray,
    steps: Sequence[MeasuredStep],
    inside: np.ndarray,
    like_context_tokens: int,
) -> str:
    chosen = [step for step, yes in zip(steps, inside, strict=True) if yes]
    error, noise = sample_mape_ratio(predicted[inside], chosen), noise_floor_ratio(chosen, like_context_tokens)
    ratios = "  ".join(f"{r:>5.1%}" for r in (row.mape_ratio, row.median_ratio, row.p90_ratio, row.worst_ratio))
    beside = "     -  -" if not noise else f"{noise:>5.1%}  {error / noise:.2f}"
    return f"{name:<34}  {row.num_steps:>5}  {ratios}  {row.bias_ratio:>+6.1%}  {error:>5.1%}  {beside}"
