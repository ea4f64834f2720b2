"""Weights from nominal numbers of device and model, for what a measurement does not say: the roofline, in our features.

A GEMM reads its weights until so many rows that arithmetic takes longer (a hinge), attention is arithmetic per pair
and reading per KV entry. Every one has origin `prior`.
"""

from __future__ import annotations

from calibrate.weights import weight
from costmodel.config import RooflineConfig
from costmodel.features import Feature
from costmodel.profile import Weight
from costmodel.specs import BF16_BYTES, device_spec, model_spec

FLOPS_PER_MAC = 2


def prior_weights(roofline: RooflineConfig) -> list[Weight]:
    """The roofline with that config's assumptions. bf16; communication as ring all-reduces."""
    device, model, gpus = device_spec(roofline.device), model_spec(roofline.model), roofline.tensor_parallel
    flops_per_s = device.flops_per_s * roofline.compute_ratio
    bytes_per_s = device.memory_bytes_per_s * roofline.memory_ratio
    sizes = {name: times * wide * deep for name, (times, wide, deep) in model.gemms(gpus).items()}
    logits = sizes.pop("logits")
    values = sum(sizes.values())
    ridge_rows = round(BF16_BYTES * flops_per_s / (FLOPS_PER_MAC * bytes_per_s))
    pair_s = 2 * FLOPS_PER_MAC * model.layers * model.query_width / gpus / flops_per_s
    kv_s = model.kv_bytes_per_token(tensor_parallel=gpus) / bytes_per_s
    reduces = 2 * model.layers if gpus > 1 else 0
    link = 2 * (gpus - 1) / gpus * model.hidden * BF16_BYTES / (device.link_bytes_per_s or float("inf"))
    found = (
        (Feature("steps"), "host", roofline.host_step_s),
        (Feature("requests"), "host", roofline.host_request_s),
        (Feature("device_steps"), "weights", (values + logits) * BF16_BYTES / bytes_per_s),
        (Feature("device_steps"), "all_reduce", reduces * roofline.all_reduce_s),
        (Feature("gemm_rows"), "all_reduce", reduces * link),
        (Feature("gemm_rows", ridge_rows), "gemm", FLOPS_PER_MAC * values / flops_per_s),
        (Feature("logit_rows", ridge_rows), "logits", FLOPS_PER_MAC * logits / flops_per_s),
        (Feature("prefill_pairs"), "prefill_attention", pair_s),
        (Feature("decode_kv_tokens"), "decode_attention", kv_s),
        (Feature("verify_extra_pairs"), "verify_attention", pair_s),
        (Feature("verify_kv_tokens"), "verify_attention", kv_s),
    )
    return [weight(feature, part, s_per_unit, "prior") for feature, part, s_per_unit in found if s_per_unit > 0]
