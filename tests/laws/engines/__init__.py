"""Engines to draw from, each short of everything, with flags by chance: the order counts, seeds draw by it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from sim.core.spec import EngineSpec
from sim.engines.trtllm import GuaranteedNoEvict, MaxUtilization
from sim.engines.trtllm import StaticBatch as TrtLlmStaticBatch
from tests.laws.engines.others import aging, behind_a_front, deadlines, mini_runtime, profiled, swapping
from tests.laws.engines.ours import (
    equal_share,
    per_kind,
    prefill_first,
    reference,
    static_batch,
    step_time,
    textbook,
    token_work,
)
from tests.laws.engines.sglang import policies_elsewhere, sglang
from tests.laws.engines.trtllm import trtllm, with_others_policies
from tests.laws.engines.vllm import vllm_v0, vllm_v1

ENGINES: dict[str, Callable[[Random, int, int], EngineSpec]] = {
    "vllm-v1 sync": vllm_v1,
    "vllm-v1 async": lambda *at: vllm_v1(*at, async_scheduling=True),
    "vllm-v1 prefix": lambda *at: vllm_v1(*at, enable_prefix_caching=True),
    "vllm-v1 async prefix": lambda *at: vllm_v1(*at, async_scheduling=True, enable_prefix_caching=True),
    "reference optimistic": reference,
    "reference conservative": lambda *at: reference(*at, admission="conservative"),
    "reference prefix": lambda *at: reference(*at, prefix_cache=True),
    "reference conservative prefix": lambda *at: reference(*at, admission="conservative", prefix_cache=True),
    "reference radix": lambda *at: reference(*at, prefix_cache=True, prefix_cache_kind="radix-tree"),
    "prefill first": prefill_first,
    "limits per kind": per_kind,
    "token work": token_work,
    "textbook": textbook,
    "static batch": static_batch,
    "mini-runtime": mini_runtime,
    "behind a front": behind_a_front,
    "profiled": profiled,
    "deadlines": deadlines,
    "aging": aging,
    "step time": step_time,
    "equal share": equal_share,
    "vllm-v0 recompute": vllm_v0,
    "vllm-v0 swap": lambda *at: vllm_v0(*at, chunked=False, preemption_mode="swap"),
    "vllm-v0 chunked swap": lambda *at: vllm_v0(*at, chunked=True, preemption_mode="swap"),
    "vllm-v0 prefix": lambda *at: vllm_v0(*at, enable_prefix_caching=True),
    "vllm-v0 prefix swap": lambda *at: vllm_v0(*at, enable_prefix_caching=True, preemption_mode="swap"),
    "vllm-v0 priority": lambda *at: vllm_v0(*at, chunked=False, scheduling_policy="priority"),
    "trtllm guaranteed no evict": lambda *at: trtllm(*at, preset=GuaranteedNoEvict),
    "trtllm max utilization": lambda *at: trtllm(*at, preset=MaxUtilization),
    "trtllm static batch": lambda *at: trtllm(*at, preset=TrtLlmStaticBatch),
    "trtllm with others' policies": with_others_policies,
    "swapping vllm-v1": lambda *at: swapping(vllm_v1(*at, enable_prefix_caching=at[0].random() < 0.5), at[0]),
    "swapping vllm-v1 async": lambda *at: swapping(
        vllm_v1(*at, async_scheduling=True, enable_prefix_caching=at[0].random() < 0.5), at[0]
    ),
    "swapping reference": lambda *at: swapping(reference(*at), at[0]),
    "swapping trtllm": lambda *at: swapping(trtllm(*at, preset=MaxUtilization), at[0]),
    "swapping prefill first": lambda *at: swapping(prefill_first(*at), at[0]),
    "sglang": sglang,
    "sglang lpm": lambda *at: sglang(*at, schedule_policy="lpm"),
    "sglang dfs-weight": lambda *at: sglang(*at, schedule_policy="dfs-weight"),
    "sglang lof, no cache": lambda *at: sglang(*at, schedule_policy="lof", disable_radix_cache=True),
    "sglang's policies elsewhere": policies_elsewhere,
    "sglang mixed": lambda *at: sglang(*at, enable_mixed_chunk=True, schedule_policy=at[0].choice(("fcfs", "lpm"))),
}
"""(random generator, tokens of a block, blocks of the pool) -> spec, by name."""
