"""The mini-runtime; policies, fronts and swapping on engines that come without."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from sim.core.front import FrontLimits
from sim.core.spec import EngineSpec
from sim.engines import UNKNOWN_HARDWARE
from sim.engines.mini_runtime import MiniRuntime
from sim.kv.host import HostSpec
from sim.policies.aging import LeastUrgentHysteresis, PriorityAging
from sim.policies.cheaper import Cheaper
from sim.policies.deadline import EarliestDeadline, LeastSlack, ShedLate
from sim.policies.preemption import LeastUrgent, Newest
from sim.policies.profiled import Profiled
from sim.policies.protocols import PreemptionPolicy
from tests.laws.costs import COSTS, STEP_NS
from tests.laws.engines.ours import reference
from tests.laws.engines.vllm import vllm_v1


def mini_runtime(rng: Random, block: int, blocks: int) -> EngineSpec:
    defects = {name: rng.random() < 0.7 for name in MiniRuntime.model_fields if name.startswith("tree_")}
    config = MiniRuntime(
        max_batch_size=rng.choice((1, 2, 4, 16)),
        block_size=block,
        num_blocks=blocks,
        max_tokens_per_prefill_chunk=rng.choice((2, 8, 1024)),
        max_tokens_per_prefill_step=rng.choice((2, 8, 8192)),
        **defects,
    )
    return config.spec(UNKNOWN_HARDWARE)


def profiled(rng: Random, block: int, blocks: int) -> EngineSpec:
    admission = Profiled(
        quantile=rng.choice((0.5, 0.9)),
        estimate=rng.choice((2, 10, 60)),
        method=rng.choice(("quantile", "conformal")),
        alpha=rng.choice((0.1, 0.4)),
        window=rng.choice((2, 4, 30)),
        min_history=rng.choice((1, 2)),
        share=rng.choice((0.1, 0.5)),
        outgrown=rng.choice(("conditional", "optimistic")),
        margin_blocks=rng.choice((0, 0, 1)),
    )
    base = rng.choice((vllm_v1, reference))
    return replace(base(rng, block, blocks), admission=admission)


def deadlines(rng: Random, block: int, blocks: int) -> EngineSpec:
    ttft_s, tpot_s = rng.choice((5, 20, 100)) * STEP_NS / 1e9, rng.choice((0.0, 1e-6))
    spec = vllm_v1(rng, block, blocks, async_scheduling=rng.random() < 0.5)
    order = EarliestDeadline(ttft_s, tpot_s) if rng.random() < 0.5 else LeastSlack(1e6, ttft_s, tpot_s)
    admission = ShedLate(spec.admission, ttft_s, rng.choice((0.0, 1e7)))
    return replace(spec, order=order, admission=admission)


def aging(rng: Random, block: int, blocks: int) -> EngineSpec:
    aging_s = rng.choice((1, 10)) * STEP_NS / 1e9
    preemption = LeastUrgentHysteresis(rng.choice((0, 3, 30)) * STEP_NS / 1e9, rng.choice((0, 1, 3)), aging_s)
    spec = vllm_v1(rng, block, blocks, async_scheduling=rng.random() < 0.5)
    return replace(spec, order=PriorityAging(aging_s), preemption=preemption)


def behind_a_front(rng: Random, block: int, blocks: int) -> EngineSpec:
    """Requests are refused or wait in front of an engine."""
    base = rng.choice((vllm_v1, reference))
    limits = FrontLimits(
        max_in_flight=rng.choice((None, 1, 3, 6)),
        max_waiting=rng.choice((None, 1, 2, 5)),
        max_waiting_tokens=rng.choice((None, None, 20, 90)),
        overflow=rng.choice(("reject", "queue", "queue", "queue")),
    )
    flags = {"async_scheduling": rng.random() < 0.5} if base is vllm_v1 else {}
    return replace(base(rng, block, blocks, **flags), front=limits)


def swapping(base: EngineSpec, rng: Random) -> EngineSpec:
    """An engine of somebody else's with a host pool and a policy that swaps."""
    mode: PreemptionPolicy = rng.choice((Newest(mode="swap"), LeastUrgent(mode="swap"), Cheaper(cost=COSTS["uneven"])))
    host = HostSpec(rng.choice((2, 10, 80)), ns_per_block=rng.choice((0.0, 40.0, 700.0)))
    return replace(base, preemption=mode, host=host)
