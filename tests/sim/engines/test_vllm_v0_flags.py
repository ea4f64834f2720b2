"""vLLM V0's flags: what None stands for, and with which it does not start (0.6.6.post1 `arg_utils.py`, `config.py`)."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sim.engines import UNKNOWN_HARDWARE, Hardware
from sim.engines.vllm_v0 import VllmV0
from sim.policies.budget import ListOrder
from sim.policies.watermark import Watermark


def test_defaults_are_those_of_the_engine() -> None:
    """None is filled in from the model's length, as `EngineArgs` does."""
    short = VllmV0(max_model_len=1000).spec(UNKNOWN_HARDWARE)
    assert isinstance(short.budget, ListOrder)
    assert (short.budget.max_tokens, short.budget.chunked, short.max_running) == (2048, False, 256)
    longer = VllmV0(max_model_len=32_768).spec(UNKNOWN_HARDWARE)
    assert (longer.budget.limit, longer.max_model_len) == (32_768, 32_768)
    longest = VllmV0().spec(Hardware(kv_tokens=16_000, max_model_len=32_769, kv_bytes_per_token=1 << 18))
    assert isinstance(longest.budget, ListOrder)
    assert (longest.budget.max_tokens, longest.budget.chunked) == (2048, True)
    assert isinstance(longest.admission, Watermark)
    assert longest.admission.watermark_blocks == 10
    assert longest.host.blocks == 1024  # 4 GiB in blocks of 16 * 2^18 bytes


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"max_num_batched_tokens": 100}, r"max_num_batched_tokens must be >= max_num_seqs \(256\), got 100"),
        ({"scheduling_policy": "priority", "preemption_mode": "swap"}, "does not go with scheduling_policy priority"),
        ({"preemption_mode": "fail"}, "preemption_mode must be 'recompute' or 'swap'"),
    ],
)
def test_wrong_flags(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        VllmV0(**flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"max_model_len": 4096, "max_num_batched_tokens": 2048}, r"must be >= 4096 \(max_model_len\) without chunks"),
        (
            {"enable_prefix_caching": True, "enable_chunked_prefill": True, "max_num_batched_tokens": 1000},
            "must be whole blocks of 16 for chunks and a cache, got 1000",
        ),
    ],
)
def test_flags_with_which_vllm_does_not_start(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VllmV0(**flags).spec(UNKNOWN_HARDWARE)
