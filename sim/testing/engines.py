"""Random engines for tests of policies, short of everything."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from sim.core.spec import EngineSpec
from sim.engines import UNKNOWN_HARDWARE, Reference, VllmV1
from sim.kv.host import HostSpec


def random_engine(rng: Random, block: int, blocks: int, kind: str) -> EngineSpec:
    """One that asks policies of this kind, with a host pool."""
    make = rng.choice((_reference, _vllm)) if kind != "eviction" else _reference
    return replace(make(rng, block, blocks, kind), host=HostSpec(rng.randint(1, 2 * blocks), 1000.0))


def _reference(rng: Random, block: int, blocks: int, kind: str) -> EngineSpec:
    config = Reference(
        token_budget=rng.choice((8, 32, 512)),
        chunk_cap=rng.choice((0, 4)),
        slots=rng.choice((2, 4, 64)),
        block_size=block,
        num_blocks=blocks,
        max_model_len=100_000,
        prefix_cache=kind == "eviction" or rng.random() < 0.5,
        prefix_cache_kind="radix-tree" if kind == "eviction" else "hash-chain",
        full_prompt_must_fit=rng.random() < 0.7,
        order=rng.choice(("fcfs", "priority")),
    )
    return config.spec(UNKNOWN_HARDWARE)


def _vllm(rng: Random, block: int, blocks: int, kind: str) -> EngineSpec:
    config = VllmV1(
        block_size=block,
        num_gpu_blocks_override=blocks + 1,
        max_model_len=blocks * block,
        max_num_batched_tokens=rng.choice((8, 64, 512)),
        max_num_seqs=rng.choice((2, 4, 64)),
        enable_prefix_caching=rng.random() < 0.5,
        async_scheduling=rng.random() < 0.5,
    )
    return config.spec(UNKNOWN_HARDWARE)
