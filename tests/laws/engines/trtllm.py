"""TensorRT-LLM, and its two stages under policies of others."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from sim.core.spec import EngineSpec
from sim.engines import UNKNOWN_HARDWARE
from sim.engines.trtllm import GuaranteedNoEvict, MaxUtilization, TrtLlm
from sim.policies.admission import Conservative, Optimistic
from sim.policies.preemption import LeastUrgent, Newest, SelfPreemption
from tests.laws.engines.ours import per_kind, prefill_first, reference, token_work


def trtllm(rng: Random, block: int, blocks: int, *, preset: type[TrtLlm], any_budget: bool = False) -> EngineSpec:
    chunked = any_budget or rng.random() < 0.6
    unit = 1 if any_budget else rng.choice((None, 1, 3, 8))
    batch = rng.choice((1, 2, 4, 64))
    config = preset(
        max_batch_size=batch,
        max_num_tokens=max(unit or block, rng.choice((4, 16, 64))) if chunked else rng.choice((64, 512)),
        max_num_requests=rng.choice((None, None, 2, 2 * batch)),
        tokens_per_block=block,
        num_blocks=blocks,
        enable_chunked_prefill=chunked,
        chunking_policy=rng.choice(("FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS")),
        chunk_unit_size=unit,
        max_seq_len=rng.choice((blocks * block, 100_000)),
    )
    return config.spec(UNKNOWN_HARDWARE)


def with_others_policies(rng: Random, block: int, blocks: int) -> EngineSpec:
    """Its two stages under policies of somebody else's."""
    preset = rng.choice((MaxUtilization, GuaranteedNoEvict))
    base = trtllm(rng, block, blocks, preset=preset, any_budget=True)
    other = token_work if rng.random() < 0.2 else rng.choice((prefill_first, per_kind, reference))
    foreign = other(rng, block, blocks)
    admission = rng.choice((Optimistic(), Optimistic(1), Conservative(), base.admission))
    preemption = rng.choice((SelfPreemption(), LeastUrgent(), Newest()))
    return replace(base, budget=foreign.budget, order=foreign.order, admission=admission, preemption=preemption)
