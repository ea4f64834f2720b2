"""Nominal numbers: KV bytes (case F6 and the table of models), parameters, GEMM shapes."""

from __future__ import annotations

import pytest

from costmodel.specs import DEVICES, MODELS, ModelSpec, device_spec, model_spec


def test_f6_kv_bytes_per_token() -> None:
    """28 layers, 4 KV heads, head size 128, 16 bit: 57,344 B; the 28 query heads and 8 bytes are the known mistakes."""
    model = model_spec("qwen2.5-7b")
    per_token = model.kv_bytes_per_token()
    assert per_token == 57_344
    assert 3072 * per_token == 176_160_768 == 168 << 20
    assert 16 * per_token == 917_504


@pytest.mark.parametrize(
    ("name", "bf16", "fp8"),
    [
        ("llama-3.1-8b", 131_072, 65_536),
        ("llama-3.1-70b", 327_680, 163_840),
        ("llama-3.1-405b", 516_096, 258_048),
        ("qwen3-8b", 147_456, 73_728),
        ("qwen3-14b", 163_840, 81_920),
        ("qwen3-32b", 262_144, 131_072),
    ],
)
def test_kv_bytes_of_known_models(name: str, bf16: int, fp8: int) -> None:
    model = model_spec(name)
    assert model.kv_bytes_per_token() == bf16
    assert model.kv_bytes_per_token(value_bytes=1) == fp8


@pytest.mark.parametrize(("gpus", "share"), [(1, 1), (2, 2), (8, 8), (16, 8)])
def test_kv_heads_are_replicated_beyond_their_number(gpus: int, share: int) -> None:
    assert model_spec("llama-3.1-70b").kv_bytes_per_token(tensor_parallel=gpus) == 327_680 // share


def test_parameters_and_gemms_of_llama_3_1_8b() -> None:
    model = model_spec("llama-3.1-8b")
    assert model.parameters == 8_030_261_248
    assert model.gemms() == {
        "qkv": (32, 6144, 4096),
        "attention_out": (32, 4096, 4096),
        "gate_up": (32, 28_672, 4096),
        "down": (32, 4096, 14_336),
        "logits": (1, 128_256, 4096),
    }
    assert model.gemms(tensor_parallel=4)["down"] == (32, 4096, 3584)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-3.1-70b", 70.55), ("llama-3.1-405b", 405.8), ("qwen3-8b", 8.19), ("qwen3-32b", 32.76)],
)
def test_parameters_are_what_the_names_say(name: str, billions: float) -> None:
    assert model_spec(name).parameters / 1e9 == pytest.approx(billions, rel=1e-3)


def test_names_are_keys() -> None:
    assert all(name == spec.name for name, spec in DEVICES.items())
    assert all(name == spec.name for name, spec in MODELS.items())


def test_unknown_names_list_what_exists() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'Llama-3.1-8': known are .*did you mean 'llama-3.1-8b'\?"):
        model_spec("Llama-3.1-8")
    with pytest.raises(ValueError, match=r"unknown device 'tpu': known are h100-sxm, .*l4$"):
        device_spec("tpu")


def test_specs_refuse_nonsense() -> None:
    values = model_spec("qwen3-8b").model_dump()
    with pytest.raises(ValueError, match="greater than 0"):
        ModelSpec(**(values | {"layers": 0}))
