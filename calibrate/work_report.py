"""What a token weighs: token-work at the reference, over batch and context, and if constant work is constant time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import isotonic_regression

from calibrate.evidence import Evidence, EvidenceError, MeasuredStep, noise_floor_ratio
from calibrate.fit import MEASURED_FEATURES, FloatArray, fit_few_weights
from calibrate.regions import region
from costmodel.features import feature_matrix
from costmodel.profile import Profile, Reference
from costmodel.shape import StepShape
from costmodel.token_weights import Term, TokenWeightsModel
from costmodel.work import EQUAL_WORK, TokenWork, token_work

US_PER_S = 1e6
BATCHES = (1, 4, 16, 64, 128, 256)
CONTEXTS = (128, 512, 2048, 8192, 32_768)
CHUNKS = (64, 256, 512, 2048, 8192)
WIDTHS = (2, 3, 5)


def work_text(profile: Profile) -> str:
    """The profile's token-work at its reference, and what one token costs there and elsewhere."""
    at, model = profile.reference, TokenWeightsModel(profile.terms())
    unit_s = _decode_s(model, at.decode_requests, at.context_tokens)
    work = token_work(model, at)
    head = (
        f"1 token-work = one decode token at {at.decode_requests} decodes of {at.context_tokens:,} = "
        f"{unit_s * US_PER_S:.4g} us (marginal, over a doubling of the batch)"
    )
    blocks = [
        f"{head}\n{_weights_text(work)}",
        _decodes_text(profile, model, unit_s),
        _chunks_text(profile, model, unit_s),
    ]
    return "\n\n".join([*blocks, _verify_text(profile, model, unit_s)])


def _weights_text(work: TokenWork) -> str:
    rows = (
        ("prefill token", work.prefill_token),
        ("1,000 (query, key) pairs of a chunk", 1000 * work.prefill_pair),
        ("decode token, without what it reads", work.decode_request),
        ("1,000 KV tokens read by decodes", 1000 * work.decode_kv_token),
        ("verify token after the first", work.verify_extra_row),
        ("1,000 (query, key) pairs of those", 1000 * work.verify_extra_pair),
    )
    return "\n".join(f"{value:>10.4f}  per {name}" for name, value in rows)


def _decode_s(model: TokenWeightsModel, requests: int, context: int) -> float:
    """Seconds of one more decode, over a doubling of the batch."""
    batch, twice = (StepShape((), n, n * context) for n in (requests, 2 * requests))
    return (model.seconds(twice) - model.seconds(batch)) / requests


def _within(values: Sequence[int], limit: int) -> list[int]:
    return [value for value in values if value <= limit] or [min(values[0], limit)]


def _decodes_text(profile: Profile, model: TokenWeightsModel, unit_s: float) -> str:
    """Over batch and context, as far as was measured."""
    seen = profile.valid_range
    contexts = _within(CONTEXTS, seen.max_context_tokens)
    lines = ["a decode token, in token-work, by batch (down) and context (across)"]
    lines.append(f"{'':>6}" + "".join(f"{context:>9,}" for context in contexts))
    for batch in _within(BATCHES, seen.max_decode_requests):
        inside = [2 * batch * (context + 1) <= 2 * seen.max_decode_kv_tokens for context in contexts]
        cells = [
            f"{_decode_s(model, batch, context) / unit_s:>9.3f}" if yes else f"{'-':>9}"
            for context, yes in zip(contexts, inside, strict=True)
        ]
        lines.append(f"{batch:>6,}" + "".join(cells))
    return "\n".join(lines)


def _chunks_text(profile: Profile, model: TokenWeightsModel, unit_s: float) -> str:
    """Beside the reference batch: what each token of a chunk adds, by chunk and earlier context."""
    seen, at = profile.valid_range, profile.reference
    batch = StepShape((), at.decode_requests, at.decode_requests * at.context_tokens)
    contexts = [0, *_within(CONTEXTS, seen.max_context_tokens)]
    lines = ["a prefill token beside that batch, in token-work, by chunk (down) and earlier context (across)"]
    lines.append(f"{'':>6}" + "".join(f"{context:>9,}" for context in contexts))
    for chunk in _within(CHUNKS, seen.max_prefill_tokens):
        added = [
            model.seconds(StepShape(((chunk, context),), batch.decode_requests, batch.decode_context_tokens))
            - model.seconds(batch)
            for context in contexts
        ]
        lines.append(f"{chunk:>6,}" + "".join(f"{seconds / chunk / unit_s:>9.3f}" for seconds in added))
    return "\n".join(lines)


def _verify_text(profile: Profile, model: TokenWeightsModel, unit_s: float) -> str:
    """Of a whole batch that verifies: what each token after a request's first adds."""
    at = profile.reference

    def seconds(width: int) -> float:
        return model.seconds(StepShape(verify=((width, at.context_tokens),) * at.decode_requests))

    extra = [(seconds(width) - seconds(1)) / (at.decode_requests * (width - 1)) / unit_s for width in WIDTHS]
    cells = ", ".join(f"{value:.3f} with {width - 1} drafts" for width, value in zip(WIDTHS, extra, strict=True))
    note = "" if profile.valid_range.verification else " (derived, not measured)"
    return f"a verify token after the first, all of that batch verifying: {cells}{note}"


def spread_text(evidence: Evidence, reference: Reference) -> str:
    """Held-out steps: how much of their time is left open by token-work, with equal weights and with calibrated ones.

    Every region's steps are weighed by a fit that has not seen it. Step time at given work is taken as whatever rising
    curve suits the weights best (isotonic regression), so only what work does not order is left.
    """
    steps = evidence.steps
    works = held_out_works(steps, reference)
    equal = np.array([EQUAL_WORK.work(step.shape) for step in steps])
    seconds = np.array([step.median_s for step in steps])
    noise = noise_floor_ratio(steps, evidence.like_context_tokens)
    lines = [
        f"{len(steps)} held-out steps: step time left open at constant token-work"
        + (f" (noise of single samples: {noise:.1%})" if noise else ""),
        f"{'weights':<12}  mean deviation  P95 / P5  off a straight line",
    ]
    for name, work in (("equal", equal), ("calibrated", works)):
        rest = seconds / _rising(work, seconds)
        low, high = np.percentile(rest, (5, 95))
        deviation = float(np.abs(rest - 1).mean())
        lines.append(f"{name:<12}  {deviation:>14.1%}  {high / low:>8.2f}  {_off_line(work, seconds):>19.1%}")
    return "\n".join(lines)


def held_out_works(steps: Sequence[MeasuredStep], reference: Reference) -> FloatArray:
    """Token-work of each step by weights fitted without its region. Shape: (steps,)."""
    regions = np.array([region(step.shape) for step in steps])
    if len(set(regions.tolist())) < 2:
        raise EvidenceError("steps of one region only: nothing can be held out")
    matrix = feature_matrix([step.shape for step in steps], [feature for feature, _ in MEASURED_FEATURES])
    seconds = np.array([step.median_s for step in steps])
    works = np.zeros(len(steps))
    for name in dict.fromkeys(regions.tolist()):
        inside = regions == name
        weights = fit_few_weights(matrix[~inside], seconds[~inside], regions[~inside].tolist())
        terms = [Term(f, w, part) for (f, part), w in zip(MEASURED_FEATURES, weights.tolist(), strict=True) if w > 0]
        work = token_work(TokenWeightsModel(terms), reference)
        works[inside] = [work.work(step.shape) for step, yes in zip(steps, inside, strict=True) if yes]
    return works


def _rising(work: FloatArray, seconds: FloatArray) -> FloatArray:
    """The best time for each step that only rises with work, in relative terms. Shape: (steps,)."""
    order = np.lexsort((seconds, work))
    found = np.empty_like(seconds)
    found[order] = np.exp(isotonic_regression(np.log(seconds[order])).x)
    return found


def _off_line(work: FloatArray, seconds: FloatArray) -> float:
    """Mean relative error of the best line fixed + slope * work."""
    matrix = np.column_stack([np.ones_like(work), work])
    weights = fit_few_weights(matrix, seconds, ["all"] * len(work))
    return float(np.abs(seconds / (matrix @ weights) - 1).mean())
