"""A token-weights profile from measured steps: fitted weights, derived ones, range, errors, provenance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrate.evidence import Evidence, MeasuredStep
from calibrate.fit import region_errors, worst_steps
from calibrate.fit_steps import FittedSteps
from calibrate.weights import weight
from costmodel.features import Feature
from costmodel.profile import (
    SCHEMA_VERSION,
    SMALLEST_STEP_S,
    Profile,
    Provenance,
    Range,
    Reference,
    RegionError,
    Weight,
)
from costmodel.work import DEFAULT_REFERENCE

VERIFY_SOURCE = (
    "verification was not measured: its weights are derived. All rows in the GEMMs; KV read once per request at the "
    "decode weight; rows after the first at the prefill token and pair weights"
)
PRIOR_SOURCE = "too little in the evidence and left at a prior, the roofline of device and model: "
METHOD = (
    "non-negative least squares on relative errors of the median of each step, weighted by 1/predicted, regions "
    "weighted equally; weights below 1 % of every step left out; held out by region, and the largest decade of tokens"
)
WORST_STEPS = 8


def profile_from_steps(name: str, evidence: Evidence, fitted: FittedSteps, fixed: Sequence[Weight] = ()) -> Profile:
    """`fixed`: the weights that the fit was given, which say of verification what is known."""
    weights = fitted_weights(fitted)
    seen = measured_range(fitted.steps)
    derived = () if seen.verification or fixed else (VERIFY_SOURCE,)
    shapes = [step.shape for step in fitted.steps]
    return Profile(
        schema_version=SCHEMA_VERSION,
        name=name,
        device=evidence.device,
        model=evidence.model.name,
        model_shape=evidence.model,
        dtype=evidence.dtype,
        tensor_parallel=evidence.tensor_parallel,
        engine=evidence.engine,
        provenance=provenance(evidence, METHOD),
        weights=(*weights, *fixed, *(derived_verify_weights(weights) if derived else ())),
        valid_range=seen,
        reference=reference_within(seen),
        fit_errors=region_errors(fitted.predicted, fitted.seconds, fitted.regions),
        held_out_errors=held_out_rows(fitted),
        noise_floor_ratio=None if fitted.noise_ratio is None else round(fitted.noise_ratio, 4),
        warnings=fitted.warnings,
        worst_steps=worst_steps(fitted.predicted, fitted.seconds, shapes, WORST_STEPS, "measured"),
        assumed=(*evidence.notes, *([_prior_text(fixed)] if fixed else ())),
        derived=derived,
        rates=evidence.rates,
        cuda_graphs=evidence.cuda_graphs,
        pool=evidence.pool,
    )


def _prior_text(fixed: Sequence[Weight]) -> str:
    return PRIOR_SOURCE + ", ".join(dict.fromkeys(each.quantity for each in fixed))


def provenance(evidence: Evidence, method: str) -> Provenance:
    return Provenance(
        evidence=evidence.kind,
        dataset=", ".join(series.name for series in evidence.series),
        source=evidence.source,
        files=tuple(series.file for series in evidence.series),
        method=method,
    )


def fitted_weights(fitted: FittedSteps) -> list[Weight]:
    """Every step takes time: without a constant in the fit, the least that the clock can show."""
    pairs = zip(fitted.candidates, fitted.weights.tolist(), strict=True)
    found = [weight(feature, part, s_per_unit, "fitted") for (feature, part), s_per_unit in pairs if s_per_unit > 0]
    if not any(each.quantity == "steps" for each in found):
        found.insert(0, weight(Feature("steps"), "step", SMALLEST_STEP_S, "assumed"))
    return found


def held_out_rows(fitted: FittedSteps) -> tuple[RegionError, ...]:
    """By region, then the largest decade, then all regions together; none where nothing could be held out."""
    if np.isnan(fitted.held_out).any():
        return ()
    *rows, total = region_errors(fitted.held_out, fitted.seconds, fitted.regions)
    name, large, predicted = fitted.decade
    if len(predicted) and not np.isnan(predicted).any():
        rows.append(region_errors(predicted, fitted.seconds[large], [name] * len(predicted))[0])
    return (*rows, total)


def derived_verify_weights(weights: Sequence[Weight]) -> list[Weight]:
    """A verification of width 1 is a decode; see VERIFY_SOURCE for the rows after the first."""

    def total(quantity: str) -> float:
        return sum(w.s_per_unit for w in weights if w.quantity == quantity and not w.past and w.past_each <= 128)

    return [
        weight(Feature("verify_requests"), "verify_rows", total("decode_rows"), "derived"),
        weight(Feature("verify_extra_rows"), "verify_rows", total("prefill_tokens"), "derived"),
        weight(Feature("verify_extra_pairs"), "verify_attention", total("prefill_pairs"), "derived"),
        weight(Feature("verify_kv_tokens"), "verify_attention", total("decode_kv_tokens"), "derived"),
    ]


def measured_range(steps: Sequence[MeasuredStep]) -> Range:
    shapes = [step.shape for step in steps]
    return Range(
        max_decode_requests=max(1, *(shape.decode_requests for shape in shapes)),
        max_prefill_tokens=max(1, *(shape.prefill_tokens for shape in shapes)),
        max_context_tokens=max(1, *(step.longest_context_tokens for step in steps)),
        max_decode_kv_tokens=max(1, *(shape.decode_context_tokens + shape.decode_requests for shape in shapes)),
        verification=any(shape.verify for shape in shapes),
    )


def reference_within(seen: Range) -> Reference:
    """The usual reference, or half of what was measured where that is less: a doubling of it is looked at."""
    usual = DEFAULT_REFERENCE
    return Reference(
        decode_requests=_at_most(usual.decode_requests, seen.max_decode_requests // 2),
        context_tokens=_at_most(usual.context_tokens, seen.max_context_tokens // 2),
        prefill_chunk_tokens=_at_most(usual.prefill_chunk_tokens, seen.max_prefill_tokens // 2),
        verify_width=usual.verify_width,
    )


def _at_most(value: int, limit: int) -> int:
    return max(1, min(value, limit))
