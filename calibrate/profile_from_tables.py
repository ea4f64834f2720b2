"""A token-weights profile from measured operator tables: fitted weights, assumed and derived ones, pool, provenance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calibrate.compose import ASSUMED, StepComposer
from calibrate.fit import (
    DECODE_FLOOR_TOKENS,
    FITTED_FEATURES,
    FloatArray,
    fit_weights,
    held_out_errors,
    region_errors,
    worst_steps,
)
from calibrate.public_tables import OperatorTables
from calibrate.samples import (
    MAX_CONTEXT_TOKENS,
    MAX_DECODE_REQUESTS,
    MAX_PREFILL_TOKENS,
    samples,
)
from calibrate.weights import weight
from costmodel.features import Feature, feature_matrix
from costmodel.pool import kv_pool
from costmodel.profile import (
    SCHEMA_VERSION,
    InputFile,
    Profile,
    Provenance,
    Range,
    Weight,
)
from costmodel.work import DEFAULT_REFERENCE

HOST_STEP_S = 0.9e-3
HOST_REQUEST_S = 25e-6
HOST_SOURCE = (
    "host overhead of vLLM: 0.9 ms a step + 25 us per request and step, as found in public closed-loop runs of "
    "Llama-70B on H100 (not in the tables; a part of its own, 'host', in every prediction)"
)
VERIFY_SOURCE = (
    "verification weights are derived, not measured: all rows in the GEMMs, KV read once per request at the decode "
    "weight beyond the floor, rows after the first at the prefill pair weight, plus their share of the small kernels"
)
DATASET_COMMIT = "095f58a51c4c"
"""The one this project is pinned to; the hashes say whether the files are of it."""
WORST_STEPS = 8


def profile_from_tables(name: str, composer: StepComposer, provenance: Provenance) -> Profile:
    """Fit, and say how wrong the fit is."""
    model, tables = composer.model, composer.tables
    pool = kv_pool(model, composer.device)
    steps = samples(pool.num_blocks * pool.block_tokens)
    shapes, regions = [step.shape for step in steps], [step.region for step in steps]
    seconds = np.array([composer.seconds(shape) for shape in shapes])
    matrix = feature_matrix(shapes, [feature for feature, _ in FITTED_FEATURES])
    weights = fit_weights(matrix, seconds, regions)
    fitted = _fitted_weights(weights)
    return Profile(
        schema_version=SCHEMA_VERSION,
        name=name,
        device=tables.device,
        model=model.name,
        dtype="bfloat16",
        tensor_parallel=1,
        engine=tables.engine,
        provenance=provenance,
        weights=(*_host_weights(), *fitted, *_verify_weights(fitted, composer)),
        valid_range=Range(
            max_decode_requests=MAX_DECODE_REQUESTS,
            max_prefill_tokens=MAX_PREFILL_TOKENS,
            max_context_tokens=MAX_CONTEXT_TOKENS,
            max_decode_kv_tokens=pool.num_blocks * pool.block_tokens,
            verification=False,
        ),
        reference=DEFAULT_REFERENCE,
        fit_errors=region_errors(matrix @ weights, seconds, regions),
        held_out_errors=held_out_errors(matrix, seconds, regions),
        worst_steps=worst_steps(matrix @ weights, seconds, shapes, WORST_STEPS),
        assumed=(HOST_SOURCE, *ASSUMED),
        derived=(VERIFY_SOURCE,),
        pool=pool,
    )


def table_provenance(directory: Path, tables: OperatorTables) -> Provenance:
    place = f"{directory.resolve().parent.name}/{directory.resolve().name}"
    return Provenance(
        dataset="NVIDIA aiconfigurator performance database",
        source="ai-dynamo/aiconfigurator",
        commit=DATASET_COMMIT,
        licence="Apache-2.0",
        files=tuple(InputFile(path=f"{place}/{name}", sha256=digest) for name, digest in tables.sha256.items()),
        method="steps composed from operator times on a fixed grid; non-negative least squares weighted by "
        "1/predicted, regions weighted equally; held out by region; errors are of device time, without the assumed "
        "host overhead",
    )


def _host_weights() -> list[Weight]:
    return [
        weight(Feature("steps"), "host", HOST_STEP_S, "assumed"),
        weight(Feature("requests"), "host", HOST_REQUEST_S, "assumed"),
    ]


def _fitted_weights(weights: FloatArray) -> list[Weight]:
    return [
        weight(feature, part, s_per_unit, "fitted")
        for (feature, part), s_per_unit in zip(FITTED_FEATURES, weights.tolist(), strict=True)
        if s_per_unit > 0
    ]


def _verify_weights(fitted: Sequence[Weight], composer: StepComposer) -> list[Weight]:
    """A verification of width 1 is a decode; see VERIFY_SOURCE for the rows after the first."""

    def total(quantity: str, past_each: Sequence[int] = (0,)) -> float:
        return sum(w.s_per_unit for w in fitted if w.quantity == quantity and w.past_each in past_each)

    kv_s = total("decode_kv_tokens", (0, DECODE_FLOOR_TOKENS))
    return [
        weight(Feature("verify_requests"), "verify_rows", total("decode_rows"), "derived"),
        weight(Feature("verify_extra_rows"), "verify_rows", composer.small_kernels_s_per_row, "derived"),
        weight(Feature("verify_extra_pairs"), "verify_attention", total("prefill_pairs"), "derived"),
        weight(Feature("verify_kv_tokens"), "verify_attention", kv_s, "derived"),
    ]
