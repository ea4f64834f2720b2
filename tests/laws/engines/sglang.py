"""SGLang, and its policies on engines of others."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from sim.core.spec import EngineSpec
from sim.engines import UNKNOWN_HARDWARE
from sim.engines.sglang import Sglang
from sim.policies.arrange import DepthFirst, LongestOutputFirst, LongestPrefixFirst
from sim.policies.fewest import FewestOutputs
from sim.policies.pages import PageChunks
from sim.policies.ratio import NewTokenRatio
from tests.laws.engines.ours import reference
from tests.laws.engines.vllm import vllm_v1


def sglang(rng: Random, block: int, blocks: int, **flags: Any) -> EngineSpec:
    config = Sglang(
        **{
            "max_running_requests": rng.choice((1, 2, 4, 64)),
            "chunked_prefill_size": rng.choice((block, 3 * block, 10 * block, None)),
            "max_prefill_tokens": rng.choice((8, 64, 16384)),
            "page_size": block,
            "schedule_conservativeness": rng.choice((0.05, 0.3, 1.0)),
            "clip": rng.choice((2, 8, 4096)),
            "max_total_tokens": block * blocks,
            "max_queued_requests": rng.choice((None, None, 3)),
            **flags,
        }
    )
    return config.spec(UNKNOWN_HARDWARE)


def policies_elsewhere(rng: Random, block: int, blocks: int) -> EngineSpec:
    """SGLang's policies, each by chance, on an engine that is not made for them."""
    base = rng.choice((vllm_v1, reference))
    order = rng.choice((LongestPrefixFirst(), DepthFirst(), LongestOutputFirst()))
    caching: dict[str, Any] = {"enable_prefix_caching": True}
    if base is reference:
        caching = {"prefix_cache": True, "prefix_cache_kind": rng.choice(("hash-chain", "radix-tree"))}
    spec = base(rng, block, blocks, **caching)
    changes: dict[str, Any] = {
        "order": order,
        "admission": NewTokenRatio(conservativeness=rng.choice((0.1, 1.0)), clip_tokens=rng.choice((4, 4096))),
        "budget": PageChunks(chunk_tokens=block * rng.choice((1, 3, 40))),
        "preemption": FewestOutputs(),
    }
    return replace(spec, **{name: change for name, change in changes.items() if rng.random() < 0.6})
