"""The roofline: bounds by hand, and agreement with what was measured."""

from __future__ import annotations

import pytest

from costmodel.config import ProfileConfig, RooflineConfig, build_cost_model
from costmodel.roofline import RooflineAssumptions, RooflineModel
from costmodel.shape import StepShape
from costmodel.specs import device_spec, model_spec

IDEAL = RooflineAssumptions(compute_ratio=1.0, memory_ratio=1.0, host_step_s=1e-3, host_request_s=0.0, all_reduce_s=0.0)
H100, L8B = device_spec("h100-sxm"), model_spec("llama-3.1-8b")


def model(tensor_parallel: int = 1) -> RooflineModel:
    return RooflineModel(H100, L8B, IDEAL, tensor_parallel=tensor_parallel)


def test_a_small_decode_step_reads_weights_and_kv() -> None:
    """7.5 B parameters of projections and head, and 131,072 B per KV token, at 3.35 TB/s."""
    parts = model().parts(StepShape((), 1, 9999))
    weights = L8B.parameters - L8B.vocabulary * L8B.hidden - 65 * L8B.hidden
    gemms_s = sum(parts[name] for name in L8B.gemms())
    assert gemms_s == pytest.approx(2 * weights / 3.35e12, rel=0.001)
    assert parts["decode_attention"] == pytest.approx(10_000 * 131_072 / 3.35e12)


def test_a_large_prefill_is_bound_by_arithmetic() -> None:
    parts = model().parts(StepShape(((8192, 0),)))
    assert parts["gate_up"] == pytest.approx(2 * 8192 * 28_672 * 4096 * 32 / 989e12)
    assert parts["prefill_attention"] == pytest.approx(4 * 8192 * 8193 / 2 * 4096 * 32 / 989e12)


def test_one_row_behind_a_long_context_reads_it() -> None:
    """As a decode would."""
    chunk, decode = model().parts(StepShape(((1, 9999),))), model().parts(StepShape((), 1, 9999))
    assert chunk["prefill_attention"] == pytest.approx(decode["decode_attention"])


def test_verification_reads_kv_once() -> None:
    assert model().parts(StepShape(verify=((4, 9996),)))["verify_attention"] == pytest.approx(
        10_000 * 131_072 / 3.35e12
    )


def test_the_memory_bound_share_shrinks_with_more_gpus() -> None:
    shape = StepShape((), 1, 9999)
    one, four = model().parts(shape), model(4).parts(shape)
    assert four["gate_up"] == pytest.approx(one["gate_up"] / 4, rel=0.001)
    assert four["decode_attention"] == pytest.approx(one["decode_attention"] / 4)
    assert (one["all_reduce"], four["host"]) == (0, one["host"])
    sent_bytes = 2 * 3 / 4 * 4096 * 2
    assert four["all_reduce"] == pytest.approx(2 * 32 * sent_bytes / 450e9)


def test_a_device_without_link_cannot_share_a_model() -> None:
    with pytest.raises(ValueError, match="l4 has no link between GPUs: tensor_parallel must be 1, got 2"):
        RooflineConfig(device="l4", model="llama-3.1-8b", tensor_parallel=2)


@pytest.mark.parametrize(
    "shape",
    [
        StepShape((), 64, 64 * 2048),
        StepShape((), 256, 256 * 1024),
        StepShape(((2048, 0),)),
        StepShape(((512, 4096),), 64, 64 * 2048),
    ],
)
def test_near_the_calibrated_model(shape: StepShape) -> None:
    """With the default ratios, on the one device and model that were measured."""
    roofline = build_cost_model(RooflineConfig(device="h100-sxm", model="llama-3.1-8b"))
    profile = build_cost_model(ProfileConfig(name="h100-llama-3.1-8b-bf16"))
    assert roofline.seconds(shape) == pytest.approx(profile.seconds(shape), rel=0.1)
    assert roofline.out_of_range(shape) is None
