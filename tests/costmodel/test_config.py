"""Configs: one per kind, strict, and without side effects."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from costmodel.config import (
    CostModelConfig,
    GraphsConfig,
    LinearConfig,
    ProfileConfig,
    RooflineConfig,
    build_cost_model,
    build_token_work,
)
from costmodel.profile import ProfileError
from costmodel.shape import StepShape
from costmodel.work import EQUAL_WORK

CONFIG: TypeAdapter[CostModelConfig] = TypeAdapter(CostModelConfig)
CONFIGS: list[CostModelConfig] = [
    LinearConfig(a_s=0.01, b_s_per_token=5e-5, prefill_a_s=0.02, graphs=GraphsConfig(max_num_seqs=32)),
    ProfileConfig(name="h100-llama-3.1-8b-bf16"),
    RooflineConfig(device="h200-sxm", model="qwen3-8b", tensor_parallel=2),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_a_config_survives_json_and_builds(config: CostModelConfig) -> None:
    again = CONFIG.validate_json(config.model_dump_json())
    assert again == config
    shape = StepShape(((100, 0),), 7, 900)
    assert build_cost_model(again).step_times_ns(shape, 3) == build_cost_model(config).step_times_ns(shape, 3)


def test_from_plain_data() -> None:
    assert CONFIG.validate_python({"kind": "linear", "a_s": 0.01, "b_s_per_token": 5e-5}) == LinearConfig(
        a_s=0.01, b_s_per_token=5e-5
    )
    named = {"kind": "profile", "name": "h100-llama-3.1-8b-bf16"}
    assert CONFIG.validate_python(named) == ProfileConfig(name="h100-llama-3.1-8b-bf16")


def test_graphs_are_off_for_linear_and_on_for_the_others() -> None:
    assert [config.model_fields_set and type(config).model_fields["graphs"].default for config in CONFIGS] == [
        None,
        GraphsConfig(),
        GraphsConfig(),
    ]


def test_a_device_without_graphs_pads_nothing() -> None:
    """A profile of a CPU: three decodes are not priced as four, whatever the scenario says."""
    config = ProfileConfig(name="vllm-cpu-llama-32m-fp32", graphs=GraphsConfig(sizes=(4,)))
    assert config.build().seconds(StepShape((), 3, 30)) < config.build().seconds(StepShape((), 4, 29))


def test_a_config_never_touches_the_disk() -> None:
    """An unknown profile is found when the model is built."""
    config = ProfileConfig(name="no-such-profile")
    with pytest.raises(ProfileError, match="unknown profile 'no-such-profile'"):
        build_cost_model(config)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"kind": "table"}, "does not match any of the expected tags: 'linear', 'profile', 'roofline'"),
        ({"kind": "linear", "a_s": 0, "b_s_per_token": 0}, "greater than or equal to 0.000000001"),
        ({"kind": "linear", "a_s": 1, "b_s_per_token": -1}, "greater than or equal to 0"),
        ({"kind": "linear", "a_s": float("inf"), "b_s_per_token": 0}, "finite number"),
        ({"kind": "linear", "a_s": 1, "b_s_per_token": 0, "c": 1}, "Extra inputs are not permitted"),
        ({"kind": "profile"}, "Field required"),
        ({"kind": "roofline", "device": "h100", "model": "qwen3-8b"}, "unknown device 'h100'.*did you mean 'h100-sxm'"),
        ({"kind": "roofline", "device": "l4", "model": "qwen3-8b", "compute_ratio": 1.5}, "less than or equal to 1"),
        ({"kind": "profile", "name": "x", "graphs": {"sizes": [2, 1]}}, "graph sizes must be ascending"),
        ({"kind": "profile", "name": "x", "graphs": {"eager_penalty_s": -1}}, "greater than or equal to 0"),
    ],
)
def test_wrong_configs_are_refused(data: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        CONFIG.validate_python(data)


def test_configs_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        CONFIGS[0].graphs = None


def test_token_work_by_kind() -> None:
    """Equal for linear, whatever its slopes; the others weigh, with graphs or without alike."""
    assert build_token_work(CONFIGS[0]) is EQUAL_WORK
    for config in CONFIGS[1:]:
        work = build_token_work(config)
        assert work == build_token_work(config.model_copy(update={"graphs": None}))
        assert work.decode_work(1, 2048) == pytest.approx(1)


def test_pricing_needs_no_heavy_libraries() -> None:
    """Building a calibrated model loads numpy and pydantic, not what fitting needs."""
    program = (
        "import sys; from costmodel.config import ProfileConfig, build_cost_model\n"
        "build_cost_model(ProfileConfig(name='h100-llama-3.1-8b-bf16'))\n"
        "print(sorted({'scipy', 'pandas', 'pyarrow', 'matplotlib', 'torch'} & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert output.stdout == "[]\n"
