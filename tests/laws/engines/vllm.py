"""vLLM, old and new."""

from __future__ import annotations

from random import Random
from typing import Any

from sim.core.spec import EngineSpec
from sim.engines import UNKNOWN_HARDWARE, VllmV1
from sim.engines.vllm_v0 import VllmV0


def vllm_v1(rng: Random, block: int, blocks: int, **flags: Any) -> EngineSpec:
    chunked = rng.random() < 0.8
    budget = rng.choice((4, 8, 16, 64, 512))
    config = VllmV1(
        **{
            "block_size": block,
            "num_gpu_blocks_override": blocks + 1,
            "max_model_len": blocks * block,
            "max_num_batched_tokens": budget if chunked else max(budget, blocks * block),
            "max_num_seqs": rng.choice((2, 4, 64)),
            "enable_chunked_prefill": chunked,
            "long_prefill_token_threshold": rng.choice((0, 0, 3, 8)),
            "long_prefill_token_threshold_adaptive": rng.random() < 0.5,
            "scheduler_reserve_full_isl": rng.random() < 0.6,
            "watermark": rng.choice((0.0, 0.0, 0.2)),
            "scheduling_policy": rng.choice(("fcfs", "priority")),
            "enable_prefix_caching": False,
            "async_scheduling": False,
            **flags,
        }
    )
    return config.spec(UNKNOWN_HARDWARE)


def vllm_v0(rng: Random, block: int, blocks: int, **flags: Any) -> EngineSpec:
    chunked = flags.pop("chunked", rng.random() < 0.5)
    slots, longest = rng.choice((2, 4, 16)), blocks * block
    config = VllmV0(
        **{
            "block_size": block,
            "num_gpu_blocks_override": blocks,
            "num_cpu_blocks_override": rng.choice((2, 10, 80)),
            "max_model_len": longest,
            "max_num_batched_tokens": rng.choice((16, 32, 512)) if chunked else max(slots, longest),
            "max_num_seqs": slots,
            "enable_chunked_prefill": chunked,
            "watermark": rng.choice((0.01, 0.1)),
            **flags,
        }
    )
    return config.spec(UNKNOWN_HARDWARE)
