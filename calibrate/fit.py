"""Token weights from steps: non-negative least squares on relative errors, and how wrong the result is.

One way of fitting for all sources: steps composed from tables, steps timed here, an engine's log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from costmodel.features import Feature
from costmodel.profile import RegionError
from costmodel.shape import StepShape

FloatArray = npt.NDArray[np.float64]

DECODE_FLOOR_TOKENS = 128
"""Context each, below which a decode's attention hardly gets cheaper."""

Candidates = Sequence[tuple[Feature, str]]
"""Features that may get a weight, and what they are spent on."""

FITTED_FEATURES: tuple[tuple[Feature, str], ...] = (
    # Knees: a GEMM is memory-bound below about 128 rows and gets there gradually; decode attention has a floor below
    # about 128 tokens of context each, and loses parallelism in few long sequences.
    (Feature("device_steps"), "weights"),
    *((Feature("gemm_rows", past), "gemm") for past in (0, 128, 256, 512, 768, 4096)),
    *((Feature("logit_rows", past), "logits") for past in (0, 256)),
    (Feature("prefill_steps"), "prefill_attention"),
    (Feature("prefill_chunks"), "prefill_attention"),
    (Feature("prefill_tokens"), "prefill_rows"),
    (Feature("prefill_pairs"), "prefill_attention"),
    (Feature("decode_steps"), "decode_attention"),
    (Feature("decode_rows"), "decode_rows"),
    *((Feature("decode_kv_tokens", 0, each), "decode_attention") for each in (0, DECODE_FLOOR_TOKENS, 4096)),
)
"""Candidates for composed steps; those that get no weight are left out of the profile."""

MEASURED_FEATURES: tuple[tuple[Feature, str], ...] = (
    # As above for whole steps that were timed: knees also for devices and models that are smaller, what decodes read
    # beside a chunk by itself, and verification.
    (Feature("steps"), "step"),
    *((Feature("gemm_rows", past), "gemm") for past in (0, 8, 32, 64, 128, 256, 512, 1024, 4096)),
    *((Feature("logit_rows", past), "logits") for past in (0, 256)),
    (Feature("prefill_steps"), "prefill_attention"),
    (Feature("prefill_chunks"), "prefill_attention"),
    (Feature("prefill_tokens"), "prefill_rows"),
    (Feature("prefill_pairs"), "prefill_attention"),
    (Feature("prefill_hidden_pairs"), "prefill_attention"),
    (Feature("prefill_kv_tokens"), "prefill_attention"),
    (Feature("decode_steps"), "decode_attention"),
    (Feature("decode_rows"), "decode_rows"),
    *((Feature("decode_kv_tokens", 0, each), "decode_attention") for each in (0, DECODE_FLOOR_TOKENS, 4096)),
    (Feature("mixed_decode_kv_tokens"), "mixed_attention"),
    (Feature("verify_requests"), "verify_rows"),
    (Feature("verify_extra_rows"), "verify_rows"),
    (Feature("verify_extra_pairs"), "verify_attention"),
    (Feature("verify_kv_tokens"), "verify_attention"),
)

SMALLEST_SHARE = 0.01
"""A weight that is nowhere so much of a step is dropped and the others are fitted again: fewer are easier to read."""

LEAST_REGION_STEPS = 10
"""Of measured steps: a region of one noisy step must not decide a weight."""
WORDS = 2
"""So many verifications of a step are put in words."""
ROUNDS = 8
"""Of reweighting by the prediction; weights stop changing in the sixth digit before that."""


Fit = Callable[[FloatArray, FloatArray, Sequence[str]], FloatArray]
"""(steps x features, seconds, regions) -> seconds per unit of each feature."""


def fit_weights(
    matrix: FloatArray, seconds: FloatArray, regions: Sequence[str], least_region_steps: int = 1
) -> FloatArray:
    """Seconds per unit of each column, all >= 0, so that (predicted - seconds) / predicted is small.

    Errors are taken relative to the prediction: relative to the measurement, too slow counts less than too fast and
    the fit comes out low. Every region counts the same, however many steps it has; below `least_region_steps` a
    step counts no more than there. Shape: matrix (steps, features).
    """
    names, counts = np.unique(np.array(regions), return_counts=True)
    sizes = dict(zip(names.tolist(), counts.tolist(), strict=True))
    importance = np.array([max(sizes[region], least_region_steps) ** -0.5 for region in regions])
    predicted = seconds
    weights = np.zeros(matrix.shape[1])
    for _ in range(ROUNDS):
        scale = importance / predicted
        columns = matrix * scale[:, None]
        norms = np.linalg.norm(columns, axis=0)
        norms[norms == 0] = 1.0
        weights = nnls(columns / norms, seconds * scale)[0] / norms
        predicted = np.maximum(matrix @ weights, seconds.min())
    return weights


def fit_few_weights(matrix: FloatArray, seconds: FloatArray, regions: Sequence[str]) -> FloatArray:
    """As `fit_weights`, for measured steps: without the weights that matter nowhere."""
    weights = fit_weights(matrix, seconds, regions, LEAST_REGION_STEPS)
    predicted = matrix @ weights
    shares = (matrix * weights / predicted[:, None]).max(axis=0)
    kept = shares >= SMALLEST_SHARE
    few = np.zeros_like(weights)
    few[kept] = fit_weights(matrix[:, kept], seconds, regions, LEAST_REGION_STEPS)
    return few


def region_errors(predicted: FloatArray, seconds: FloatArray, regions: Sequence[str]) -> tuple[RegionError, ...]:
    """One row per region, in order of appearance, and one for all."""
    errors = predicted / seconds - 1
    labels = np.array(regions)
    rows = [_row(region, errors[labels == region]) for region in dict.fromkeys(regions)]
    return (*rows, _row("all", errors))


def held_out_errors(matrix: FloatArray, seconds: FloatArray, regions: Sequence[str]) -> tuple[RegionError, ...]:
    """As `region_errors`, each region predicted by weights fitted to the others."""
    return region_errors(held_out_predictions(matrix, seconds, regions), seconds, regions)


def held_out_predictions(
    matrix: FloatArray, seconds: FloatArray, regions: Sequence[str], fit: Fit = fit_weights
) -> FloatArray:
    """Seconds of each step by weights that have not seen its region. Shape: (steps,)."""
    labels = np.array(regions)
    predicted = np.zeros_like(seconds)
    for region in dict.fromkeys(regions):
        inside = labels == region
        weights = fit(matrix[~inside], seconds[~inside], labels[~inside].tolist())
        predicted[inside] = matrix[inside] @ weights
    return predicted


def worst_steps(
    predicted: FloatArray, seconds: FloatArray, shapes: Sequence[StepShape], count: int, given: str = "composed"
) -> tuple[str, ...]:
    """The steps with the largest relative errors, in words; `given` is how their seconds were come by."""
    errors = predicted / seconds - 1
    order = np.argsort(-np.abs(errors), kind="stable")[:count]
    return tuple(f"{errors[i]:+.1%}: {in_words(shapes[i])}, {given} {seconds[i] * 1e3:.2f} ms" for i in order)


def in_words(shape: StepShape) -> str:
    parts = [f"chunk of {tokens} behind {context}" for tokens, context in shape.prefill]
    if shape.decode_requests:
        mean = shape.decode_context_tokens // shape.decode_requests
        parts.append(f"{shape.decode_requests} decodes at {mean}")
    parts += [f"{width} verified behind {context}" for width, context in shape.verify[:WORDS]]
    if len(shape.verify) > WORDS:
        parts.append(f"{len(shape.verify) - WORDS} more verifications")
    return " + ".join(parts)


def _row(region: str, errors: FloatArray) -> RegionError:
    sizes = np.abs(errors)
    return RegionError(
        region=region,
        num_steps=len(errors),
        mape_ratio=_digits(sizes.mean()),
        median_ratio=_digits(np.median(sizes)),
        p90_ratio=_digits(np.percentile(sizes, 90)),
        worst_ratio=_digits(sizes.max()),
        bias_ratio=_digits(errors.mean()),
    )


def _digits(ratio: float | np.floating) -> float:
    return round(float(ratio), 4)
