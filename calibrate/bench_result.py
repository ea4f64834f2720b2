"""The result of `vllm bench serve` when that is all there is: two numbers, one for decoding and one for prompts.

The weights keep the prior's proportions; their size is scaled so that the median inter-token time at the mean
concurrency, and the median time to first token, come out. How a step's time is made up cannot be seen in such a
result, so the interval of each weight is from nothing to all of the time that was seen.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from calibrate.evidence import EvidenceError, input_file
from calibrate.priors import prior_weights
from calibrate.weights import rounded
from costmodel.config import RooflineConfig
from costmodel.features import feature_values
from costmodel.pool import kv_pool
from costmodel.profile import SCHEMA_VERSION, Profile, Provenance, Range, Weight
from costmodel.shape import StepShape
from costmodel.specs import device_spec, model_spec
from costmodel.token_weights import TokenWeightsModel
from costmodel.work import DEFAULT_REFERENCE

NUMBERS: Final = (
    "completed",
    "duration",
    "total_input_tokens",
    "total_output_tokens",
    "median_ttft_ms",
    "median_tpot_ms",
)
PREFILL_QUANTITIES: Final = ("gemm_rows", "prefill_pairs")
QUEUED_FACTOR = 3.0
"""A first token so many times later than the prior says has waited in a queue: it says nothing about prompts."""
S_PER_MS = 1e-3
METHOD = (
    "roofline weights of device and model, scaled by two numbers: decoding by the median inter-token time at the mean "
    "concurrency (Little's law), prompts by the median time to first token"
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a result says about the mean step."""

    decodes: int
    context_tokens: int
    prompt_tokens: int
    decode_s: float
    first_token_s: float

    @property
    def decode_shape(self) -> StepShape:
        return StepShape((), self.decodes, self.decodes * self.context_tokens)

    @property
    def prompt_shape(self) -> StepShape:
        return StepShape(((self.prompt_tokens, 0),), self.decodes, self.decodes * self.context_tokens)


def is_bench_result(path: Path) -> bool:
    if not path.name.endswith(".json"):
        return False
    raw = _load(path)
    return isinstance(raw, dict) and {"duration", "completed"} <= raw.keys()


def profile_from_bench(path: Path, name: str, roofline: RooflineConfig) -> Profile:
    """Raises EvidenceError where the result lacks what is needed."""
    seen = _seen(_load(path), path.name)
    prior = prior_weights(roofline)
    model = TokenWeightsModel([w.term() for w in prior])
    decode_scale = seen.decode_s / model.seconds(seen.decode_shape)
    own_s = seen.first_token_s - seen.decode_s * 1.5  # half a step of waiting, and what the step costs without it
    prompt_s = model.seconds(seen.prompt_shape) - model.seconds(seen.decode_shape)
    queued = not 0 < own_s < QUEUED_FACTOR * max(prompt_s, S_PER_MS)
    prompt_scale = decode_scale if queued else own_s / prompt_s
    weights = tuple(_scaled(w, decode_scale, prompt_scale, seen) for w in prior)
    return Profile(
        schema_version=SCHEMA_VERSION,
        name=name,
        device=device_spec(roofline.device).name,
        model=roofline.model,
        dtype="bfloat16",
        tensor_parallel=roofline.tensor_parallel,
        engine="vLLM",
        provenance=_provenance(path),
        weights=weights,
        valid_range=_range(seen),
        reference=DEFAULT_REFERENCE,
        fit_errors=(),
        held_out_errors=(),
        warnings=tuple(_warnings(decode_scale, prompt_scale, queued)),
        worst_steps=(),
        assumed=(
            f"proportions of the weights: roofline of {roofline.model} on {roofline.device}, "
            f"{roofline.tensor_parallel} GPUs, {roofline.compute_ratio} of peak FLOP/s, {roofline.memory_ratio} of "
            "bandwidth",
        ),
        derived=("verification was not seen: its weights are the prior's, scaled with decoding",),
        pool=kv_pool(model_spec(roofline.model), device_spec(roofline.device), roofline.tensor_parallel),
    )


def _provenance(path: Path) -> Provenance:
    return Provenance(
        evidence="bench result",
        dataset=path.name,
        source="vllm bench serve",
        files=(input_file(path, 1),),
        method=METHOD,
    )


def _seen(raw: dict[str, Any], name: str) -> Seen:
    values = {}
    for field in NUMBERS:
        value = raw.get(field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise EvidenceError(f"{name}: {field} must be a number > 0, got {value!r:.80}")
        values[field] = float(value)
    done, duration_s = values["completed"], values["duration"]
    prompt, output = values["total_input_tokens"] / done, values["total_output_tokens"] / done
    tpot_s = values["median_tpot_ms"] * S_PER_MS
    decodes = max(1, round(done * max(0.0, output - 1) * tpot_s / duration_s))
    gap = raw.get("median_itl_ms")
    usable = isinstance(gap, int | float) and math.isfinite(gap) and gap > 0
    return Seen(
        decodes=decodes,
        context_tokens=round(prompt + output / 2),
        prompt_tokens=max(1, round(prompt)),
        decode_s=float(gap) * S_PER_MS if usable and gap is not None else tpot_s,
        first_token_s=values["median_ttft_ms"] * S_PER_MS,
    )


def _scaled(prior: Weight, decode_scale: float, prompt_scale: float, seen: Seen) -> Weight:
    """With the interval: from nothing to all of the time seen in the step that has most of the feature."""
    prompt = prior.quantity in PREFILL_QUANTITIES
    shape = seen.prompt_shape if prompt else seen.decode_shape
    all_s = seen.first_token_s if prompt else seen.decode_s
    s_per_unit = prior.s_per_unit * (prompt_scale if prompt else decode_scale)
    (units,) = feature_values(shape, [prior.term().feature])
    high = max(s_per_unit, all_s / units) if units else None
    limits = {} if high is None else {"low_s_per_unit": 0.0, "high_s_per_unit": rounded(high)}
    return prior.model_copy(update={"s_per_unit": rounded(s_per_unit), **limits})


def _range(seen: Seen) -> Range:
    return Range(
        max_decode_requests=seen.decodes,
        max_prefill_tokens=seen.prompt_tokens,
        max_context_tokens=seen.context_tokens,
        max_decode_kv_tokens=seen.decodes * (seen.context_tokens + 1),
        verification=False,
    )


def _warnings(decode_scale: float, prompt_scale: float, queued: bool) -> list[str]:
    found = [
        "two numbers of one benchmark: good for the load that was measured, a guess for any other; "
        "a step log or `tokenwork calibrate run` tells the weights apart",
        f"decode weights are {decode_scale:.2f} times the roofline's, prompt weights {prompt_scale:.2f} times",
    ]
    if queued:
        found.append("first tokens waited in a queue (or came at once): prompts are scaled as decoding, not measured")
    return found


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise EvidenceError(f"{path.name}: not JSON: {error}") from None
