"""Random workloads on random engines, through the real driver, and the laws that can be checked on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from costmodel.config import ProfileConfig, build_cost_model
from costmodel.model import CostModel
from costmodel.shape import StepShape
from sim.core.admit import Admit
from sim.core.cohort import FOREVER
from sim.core.engine import EngineCore
from sim.core.front import FrontLimits
from sim.core.lifecycle import TERMINAL, State
from sim.core.pack import Pack
from sim.core.plan import BatchPlan
from sim.core.request import Request
from sim.core.spec import EngineSpec
from sim.driver import Arrivals, Limits, Outcome, Simulation
from sim.engines import UNKNOWN_HARDWARE, Reference, StaticBatch, Textbook, VllmV1
from sim.engines.mini_runtime import MiniRuntime
from sim.engines.sglang import Sglang
from sim.engines.trtllm import GuaranteedNoEvict, MaxUtilization, TrtLlm
from sim.engines.trtllm import StaticBatch as TrtLlmStaticBatch
from sim.engines.vllm_v0 import VllmV0
from sim.kv.content import Content
from sim.kv.host import HostSpec
from sim.policies.admission import Conservative, Optimistic
from sim.policies.aging import LeastUrgentHysteresis, PriorityAging
from sim.policies.arrange import DepthFirst, LongestOutputFirst, LongestPrefixFirst
from sim.policies.budget import ListOrder, PerKind, PrefillFirst, TokenWork
from sim.policies.cheaper import Cheaper
from sim.policies.deadline import EarliestDeadline, LeastSlack, ShedLate
from sim.policies.fewest import FewestOutputs
from sim.policies.pages import PageChunks
from sim.policies.preemption import LeastUrgent, Newest, SelfPreemption
from sim.policies.profiled import Profiled
from sim.policies.protocols import PreemptionPolicy
from sim.policies.ratio import NewTokenRatio
from sim.policies.sharing import EqualShare
from sim.policies.step_time import StepTime
from sim.results.columns import EngineLog, RequestColumns
from sim.results.tokens import expand

STEP_NS = 1000


class EvenCost:
    """Every step takes the same time, so that arrivals, deadlines and step ends often fall on one instant."""

    def step_times_ns(self, shape: StepShape, steps: int) -> list[int]:
        return [STEP_NS] * steps

    def seconds(self, shape: StepShape) -> float:
        return STEP_NS / 1e9

    def parts(self, shape: StepShape) -> dict[str, float]:
        return {"step": self.seconds(shape)}

    def out_of_range(self, shape: StepShape) -> str | None:
        return None


class UnevenCost(EvenCost):
    """The time depends on every part of the shape, so that a wrong shape shows."""

    def step_times_ns(self, shape: StepShape, steps: int) -> list[int]:
        return [self._step_ns(shape.after(step)) for step in range(steps)]

    def _step_ns(self, shape: StepShape) -> int:
        prefill = sum(7 * tokens + tokens * context // 3 for tokens, context in shape.prefill)
        return 500 + prefill + 31 * shape.decode_requests + shape.decode_context_tokens // 2


class ContextWork:
    """Token-work that grows with the context, so that a budget in work runs out in the middle of a stretch."""

    def decode_work(self, requests: int, context_tokens: int) -> float:
        return requests + context_tokens / 16

    def prefill_work(self, tokens: int, context: int) -> float:
        return tokens * (0.25 + context / 64)


PROFILE = build_cost_model(ProfileConfig(kind="profile", name="h100-llama-3.1-8b-bf16"))
COSTS: dict[str, CostModel] = {"even": EvenCost(), "uneven": UnevenCost(), "profile": PROFILE}


# -- engines: name -> (random generator, block size, pool) -> spec


def _vllm(rng: Random, block: int, blocks: int, **flags: Any) -> EngineSpec:
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


def _reference(rng: Random, block: int, blocks: int, **flags: Any) -> EngineSpec:
    config = Reference(
        **{
            "token_budget": rng.choice((4, 8, 32, 512)),
            "chunk_cap": rng.choice((0, 0, 4)),
            "slots": rng.choice((2, 4, 64)),
            "block_size": block,
            "num_blocks": blocks,
            "max_model_len": 100_000,
            "full_prompt_must_fit": rng.random() < 0.7,
            "order": rng.choice(("fcfs", "priority")),
            **flags,
        }
    )
    return config.spec(UNKNOWN_HARDWARE)


def _prefill_first(rng: Random, block: int, blocks: int) -> EngineSpec:
    budget = PrefillFirst(max_tokens=rng.choice((4, 8, 32)), chunk_cap=rng.choice((0, 4)))
    return replace(_reference(rng, block, blocks), budget=budget)


def _per_kind(rng: Random, block: int, blocks: int) -> EngineSpec:
    budget = PerKind(
        max_tokens=rng.choice((4, 8, 32)),
        max_decodes=rng.choice((2, 3, 64)),
        max_prefill_tokens=rng.choice((2, 8, 64)),
        max_chunk_tokens=rng.choice((2, 64)),
        prefill_min_tokens=rng.choice((0, 1)),
    )
    return replace(_reference(rng, block, blocks), budget=budget)


def _token_work(rng: Random, block: int, blocks: int) -> EngineSpec:
    budget = TokenWork(max_work=rng.choice((6.0, 12.0, 40.0)), chunk_cap=rng.choice((0, 4)), weights=ContextWork())
    return replace(_reference(rng, block, blocks), budget=budget)


def _textbook(rng: Random, block: int, blocks: int) -> EngineSpec:
    config = Textbook(
        max_work=rng.choice((3.0, 6.0, 64.0)),
        chunk_cap=rng.choice((0, 2, 4)),
        block_size=block,
        num_blocks=blocks,
        admission=rng.choice(("optimistic", "conservative")),
        slots=rng.choice((2, 64)),
    )
    return config.spec(UNKNOWN_HARDWARE)


def _static_batch(rng: Random, block: int, blocks: int) -> EngineSpec:
    config = StaticBatch(slots=rng.choice((1, 3, 8)), block_size=block, num_blocks=blocks, max_model_len=100_000)
    return config.spec(UNKNOWN_HARDWARE)


def _sglang(rng: Random, block: int, blocks: int, **flags: Any) -> EngineSpec:
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


def _profiled(rng: Random, block: int, blocks: int) -> EngineSpec:
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
    base = rng.choice((_vllm, _reference))
    return replace(base(rng, block, blocks), admission=admission)


def _deadlines(rng: Random, block: int, blocks: int) -> EngineSpec:
    ttft_s, tpot_s = rng.choice((5, 20, 100)) * STEP_NS / 1e9, rng.choice((0.0, 1e-6))
    spec = _vllm(rng, block, blocks, async_scheduling=rng.random() < 0.5)
    order = EarliestDeadline(ttft_s, tpot_s) if rng.random() < 0.5 else LeastSlack(1e6, ttft_s, tpot_s)
    admission = ShedLate(spec.admission, ttft_s, rng.choice((0.0, 1e7)))
    return replace(spec, order=order, admission=admission)


def _aging(rng: Random, block: int, blocks: int) -> EngineSpec:
    aging_s = rng.choice((1, 10)) * STEP_NS / 1e9
    preemption = LeastUrgentHysteresis(rng.choice((0, 3, 30)) * STEP_NS / 1e9, rng.choice((0, 1, 3)), aging_s)
    spec = _vllm(rng, block, blocks, async_scheduling=rng.random() < 0.5)
    return replace(spec, order=PriorityAging(aging_s), preemption=preemption)


def _step_time(rng: Random, block: int, blocks: int) -> EngineSpec:
    budget = StepTime(
        rng.choice((700, 1500, 4000)) / 1e9,
        UnevenCost(),
        prefill_min_tokens=rng.choice((1, 1, 8)),
        max_tokens=rng.choice((8, 64, 512)),
    )
    return replace(_reference(rng, block, blocks), budget=budget)


def _equal_share(rng: Random, block: int, blocks: int) -> EngineSpec:
    unit, sharers = rng.choice((1, 3, 16)), rng.choice((1, 2, 64))
    budget = EqualShare(max_tokens=rng.choice((4, 8, 32)), unit_tokens=unit, max_sharers=sharers)
    return replace(_reference(rng, block, blocks), budget=budget)


def _sglang_elsewhere(rng: Random, block: int, blocks: int) -> EngineSpec:
    """SGLang's policies, each by chance, on an engine that is not made for them."""
    base = rng.choice((_vllm, _reference))
    order = rng.choice((LongestPrefixFirst(), DepthFirst(), LongestOutputFirst()))
    caching: dict[str, Any] = {"enable_prefix_caching": True}
    if base is _reference:
        caching = {"prefix_cache": True, "prefix_cache_kind": rng.choice(("hash-chain", "radix-tree"))}
    spec = base(rng, block, blocks, **caching)
    changes: dict[str, Any] = {
        "order": order,
        "admission": NewTokenRatio(conservativeness=rng.choice((0.1, 1.0)), clip_tokens=rng.choice((4, 4096))),
        "budget": PageChunks(chunk_tokens=block * rng.choice((1, 3, 40))),
        "preemption": FewestOutputs(),
    }
    return replace(spec, **{name: change for name, change in changes.items() if rng.random() < 0.6})


def _front(rng: Random, block: int, blocks: int) -> EngineSpec:
    """Requests are refused or wait in front of an engine."""
    base = rng.choice((_vllm, _reference))
    limits = FrontLimits(
        max_in_flight=rng.choice((None, 1, 3, 6)),
        max_waiting=rng.choice((None, 1, 2, 5)),
        max_waiting_tokens=rng.choice((None, None, 20, 90)),
        overflow=rng.choice(("reject", "queue", "queue", "queue")),
    )
    flags = {"async_scheduling": rng.random() < 0.5} if base is _vllm else {}
    return replace(base(rng, block, blocks, **flags), front=limits)


def _mini_runtime(rng: Random, block: int, blocks: int) -> EngineSpec:
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


def _vllm_v0(rng: Random, block: int, blocks: int, **flags: Any) -> EngineSpec:
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


def _trtllm(rng: Random, block: int, blocks: int, *, preset: type[TrtLlm], any_budget: bool = False) -> EngineSpec:
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


def _trtllm_with_others(rng: Random, block: int, blocks: int) -> EngineSpec:
    """Its two stages under policies of somebody else's."""
    preset = rng.choice((MaxUtilization, GuaranteedNoEvict))
    base = _trtllm(rng, block, blocks, preset=preset, any_budget=True)
    other = _token_work if rng.random() < 0.2 else rng.choice((_prefill_first, _per_kind, _reference))
    foreign = other(rng, block, blocks)
    admission = rng.choice((Optimistic(), Optimistic(1), Conservative(), base.admission))
    preemption = rng.choice((SelfPreemption(), LeastUrgent(), Newest()))
    return replace(base, budget=foreign.budget, order=foreign.order, admission=admission, preemption=preemption)


def _swapping(base: EngineSpec, rng: Random) -> EngineSpec:
    """An engine of somebody else's with a host pool and a policy that swaps."""
    mode: PreemptionPolicy = rng.choice((Newest(mode="swap"), LeastUrgent(mode="swap"), Cheaper(cost=UnevenCost())))
    host = HostSpec(rng.choice((2, 10, 80)), ns_per_block=rng.choice((0.0, 40.0, 700.0)))
    return replace(base, preemption=mode, host=host)


ENGINES: dict[str, Callable[[Random, int, int], EngineSpec]] = {
    "vllm-v1 sync": _vllm,
    "vllm-v1 async": lambda *at: _vllm(*at, async_scheduling=True),
    "vllm-v1 prefix": lambda *at: _vllm(*at, enable_prefix_caching=True),
    "vllm-v1 async prefix": lambda *at: _vllm(*at, async_scheduling=True, enable_prefix_caching=True),
    "reference optimistic": _reference,
    "reference conservative": lambda *at: _reference(*at, admission="conservative"),
    "reference prefix": lambda *at: _reference(*at, prefix_cache=True),
    "reference conservative prefix": lambda *at: _reference(*at, admission="conservative", prefix_cache=True),
    "reference radix": lambda *at: _reference(*at, prefix_cache=True, prefix_cache_kind="radix-tree"),
    "prefill first": _prefill_first,
    "limits per kind": _per_kind,
    "token work": _token_work,
    "textbook": _textbook,
    "static batch": _static_batch,
    "mini-runtime": _mini_runtime,
    "behind a front": _front,
    "profiled": _profiled,
    "deadlines": _deadlines,
    "aging": _aging,
    "step time": _step_time,
    "equal share": _equal_share,
    "vllm-v0 recompute": _vllm_v0,
    "vllm-v0 swap": lambda *at: _vllm_v0(*at, chunked=False, preemption_mode="swap"),
    "vllm-v0 chunked swap": lambda *at: _vllm_v0(*at, chunked=True, preemption_mode="swap"),
    "vllm-v0 prefix": lambda *at: _vllm_v0(*at, enable_prefix_caching=True),
    "vllm-v0 prefix swap": lambda *at: _vllm_v0(*at, enable_prefix_caching=True, preemption_mode="swap"),
    "vllm-v0 priority": lambda *at: _vllm_v0(*at, chunked=False, scheduling_policy="priority"),
    "trtllm guaranteed no evict": lambda *at: _trtllm(*at, preset=GuaranteedNoEvict),
    "trtllm max utilization": lambda *at: _trtllm(*at, preset=MaxUtilization),
    "trtllm static batch": lambda *at: _trtllm(*at, preset=TrtLlmStaticBatch),
    "trtllm with others' policies": _trtllm_with_others,
    "swapping vllm-v1": lambda *at: _swapping(_vllm(*at, enable_prefix_caching=at[0].random() < 0.5), at[0]),
    "swapping vllm-v1 async": lambda *at: _swapping(
        _vllm(*at, async_scheduling=True, enable_prefix_caching=at[0].random() < 0.5), at[0]
    ),
    "swapping reference": lambda *at: _swapping(_reference(*at), at[0]),
    "swapping trtllm": lambda *at: _swapping(_trtllm(*at, preset=MaxUtilization), at[0]),
    "swapping prefill first": lambda *at: _swapping(_prefill_first(*at), at[0]),
    "sglang": _sglang,
    "sglang lpm": lambda *at: _sglang(*at, schedule_policy="lpm"),
    "sglang dfs-weight": lambda *at: _sglang(*at, schedule_policy="dfs-weight"),
    "sglang lof, no cache": lambda *at: _sglang(*at, schedule_policy="lof", disable_radix_cache=True),
    "sglang's policies elsewhere": _sglang_elsewhere,
    "sglang mixed": lambda *at: _sglang(*at, enable_mixed_chunk=True, schedule_policy=at[0].choice(("fcfs", "lpm"))),
}


# -- workloads


@dataclass(frozen=True, slots=True)
class Row:
    arrival_ns: int
    prompt: int
    max_tokens: int
    stop_after: int
    priority: int
    ids: tuple[int, ...]
    queue_timeout_ns: int = -1
    timeout_ns: int = -1
    cancel_after_ns: int = -1


@dataclass(frozen=True, slots=True)
class World:
    engine: str
    spec: EngineSpec
    cost: str
    rows: tuple[Row, ...]
    limits: Limits = field(default_factory=Limits)
    capacity_events: tuple[tuple[int, int], ...] = ()


def random_world(engine: str, seed: int, *, stops: bool = False) -> World:
    """The world of a seed. `stops`: the run ends at a limit, in the middle of whatever is going on."""
    rng = Random(seed)
    block = rng.choice((1, 2, 4, 8, 16))
    blocks = rng.randint(2, 40)
    spec = ENGINES[engine](rng, block, blocks)
    cost = rng.choice(("even", "even", "uneven", "uneven", "profile"))
    unit_ns = 6_000_000 if cost == "profile" else STEP_NS
    rows = _random_rows(rng, block, blocks, unit_ns)
    limits = Limits()
    if stops and rng.random() < 0.5:
        limits = Limits(max_steps=rng.randint(1, 60))
    elif stops:
        limits = Limits(max_time_ns=rng.randint(1, 160) * unit_ns // 2)
    return World(engine, spec, cost, rows, limits, _random_capacity(Random(f"capacity {seed}"), blocks, unit_ns))


def _random_capacity(rng: Random, blocks: int, unit_ns: int) -> tuple[tuple[int, int], ...]:
    """In every third world the pool jitters; in the end it has its blocks back."""
    if rng.random() < 0.66:
        return ()
    times = sorted(rng.sample(range(1, 80), rng.randint(2, 8)))
    sizes = [rng.choice((0, rng.randint(0, blocks), rng.randint(0, blocks + blocks // 4))) for _ in times[1:]]
    return tuple((time * unit_ns // 2, size) for time, size in zip(times, [*sizes, blocks], strict=True))


def _random_rows(rng: Random, block: int, blocks: int, unit_ns: int) -> tuple[Row, ...]:
    capacity = block * blocks
    longest = min(capacity + capacity // 8, 120)
    pause = rng.choice((0, 1, 4, 20))
    leaves = rng.choice((0.0, 0.0, 0.3))
    known = rng.choice((0.0, 0.5, 1.0))
    rows: list[Row] = []
    now = 0

    def moment(most: int) -> int:
        """A time of the order of some steps, often at a step's end."""
        return rng.randint(0, 4 * most) * unit_ns // 4

    for number in range(rng.randint(1, rng.choice((4, 12, 24)))):
        now += moment(pause) if rng.random() < 0.6 else 0
        prompt = rng.randint(1, rng.choice((longest, max(1, longest // 4))))
        stop_after = rng.randint(1, rng.choice((4, 30)))
        max_tokens = stop_after + rng.choice((0, 0, 3, 20, -1))
        shared = prompt // block
        if rng.random() < known:
            shared = (prompt + stop_after) // block
        parent = rng.choice(rows).ids if rows and rng.random() < 0.6 else ()
        ids = (*parent[: rng.randint(0, len(parent))], *range(1000 * number, 1000 * number + shared))[:shared]
        rows.append(
            Row(
                arrival_ns=now,
                prompt=prompt,
                max_tokens=max(1, max_tokens),
                stop_after=stop_after,
                priority=rng.choice((0, 0, 1, 2)),
                ids=ids,
                queue_timeout_ns=moment(20) if rng.random() < leaves else -1,
                timeout_ns=moment(50) if rng.random() < leaves else -1,
                cancel_after_ns=moment(50) if rng.random() < leaves else -1,
            )
        )
    return tuple(rows)


# -- runs


class CheckedLog(EngineLog):
    """The real books, with laws checked after every plan that is made and after every one that has run."""

    def __init__(self, requests: RequestColumns) -> None:
        super().__init__(0, requests)
        self.offered: list[Request] = []
        self.terminal_events: Counter[str] = Counter()
        self.core: EngineCore | None = None
        self.whole_prompt = False

    def ended(self, request: Request, reason: str, detail: str) -> None:
        assert request.id not in self.terminal_events, f"law 2: {request.id} ends twice"
        assert request.state in TERMINAL
        self.terminal_events[request.id] += 1
        super().ended(request, reason, detail)

    def planned(self, plan: BatchPlan, start_ns: int, core: EngineCore) -> None:
        super().planned(plan, start_ns, core)
        assert core.store.free_blocks >= 0
        for step in (0, plan.steps - 1):
            self.check_work(plan.shape.after(step), core, sum(not item.tokens for item in plan.items))
        for request in core.running:
            computed, known = request.computed_tokens, request.known_tokens
            most = max(computed, known) if self.whole_prompt else computed
            held = core.held_blocks(request)
            assert core.blocks(computed) <= held <= core.blocks(most), f"law 11: {request} holds {held}"
        self.check()

    def check_work(self, shape: StepShape, core: EngineCore, whole_hits: int) -> None:
        """Law 10: the step's work is within every active limit, what victims gave back being deducted.

        `whole_hits`: prompts that were cached whole; their forwards compute a token each that costs no budget.
        """
        budget = core.spec.budget
        sharers = len(core.running) + len(core.waiting) - len(core.latest_draft.swapped_in)
        if isinstance(budget, TokenWork):
            work = budget.work.decode_work(shape.decode_requests, shape.decode_context_tokens)
            work += sum(budget.work.prefill_work(tokens, context) for tokens, context in shape.prefill)
            assert work <= budget.max_work + 1e-9
            assert all(tokens <= (budget.chunk_cap or tokens) for tokens, _ in shape.prefill)
        elif isinstance(budget, PerKind):
            assert shape.tokens - whole_hits <= budget.max_tokens
            assert shape.decode_requests <= min(budget.max_decodes, budget.max_tokens - budget.prefill_min_tokens)
            assert shape.prefill_tokens - whole_hits <= budget.max_prefill_tokens
            assert all(tokens <= budget.max_chunk_tokens for tokens, _ in shape.prefill)
        elif isinstance(budget, ListOrder):
            assert shape.tokens - whole_hits <= budget.max_tokens
            if budget.chunk_cap and sharers > 1:
                cap = max(budget.chunk_cap, budget.max_tokens // sharers if budget.adaptive_cap else 0)
                assert all(tokens <= cap for tokens, _ in shape.prefill)
        elif isinstance(budget, PageChunks):
            decodes = shape.decode_requests if budget.mixed else 0
            if budget.chunk_tokens:
                assert shape.prefill_tokens + (decodes if shape.prefill else 0) <= budget.chunk_tokens
            else:
                assert len(shape.prefill) <= 1 or shape.prefill_tokens + decodes <= budget.max_input_tokens
        elif isinstance(budget, StepTime):
            assert shape.tokens <= budget.max_tokens
            in_time = budget.cost.step_times_ns(shape, 1)[0] <= budget.target_ns
            assert in_time or shape.prefill_tokens <= budget.prefill_min_tokens
        elif isinstance(budget, EqualShare):
            assert shape.tokens <= budget.max_tokens
        else:
            raise AssertionError(f"no check for {budget}")
        assert len(core.running) <= core.spec.max_running

    def ran(self, plan: BatchPlan, *rest: Any) -> None:
        super().ran(plan, *rest)
        self.check()

    def check(self) -> None:
        """Laws 1, 2, 4: every offered request is in one place; blocks add up."""
        assert self.core is not None
        core, states = self.core, Counter(request.state for request in self.offered)
        assert states[State.QUEUED] == core.num_waiting
        assert states[State.SWAPPED] == len(core.swapped)
        assert states[State.RUNNING] == len(core.running)
        assert sum(states[state] for state in TERMINAL) == len(self.terminal_events)
        core.check_invariants()


@dataclass(slots=True)
class Run:
    world: World
    core: EngineCore
    log: CheckedLog
    columns: RequestColumns
    outcome: Outcome
    requests: list[Request]

    @property
    def steps(self) -> int:
        return sum(self.log.steps.steps)

    @property
    def stretched_ratio(self) -> float:
        """Share of steps that were not the first of their plan."""
        return 1 - len(self.log.steps.steps) / self.steps

    def token_times_ns(self, row: int) -> list[int]:
        times: list[int] = expand(self.log, row).tolist()
        return times

    def blocked(self) -> list[tuple[int, int]]:
        """What the head of the queue waited for as a step function of time, without steps of no length."""
        steps: list[tuple[int, int]] = []
        for since_ns, by in zip(self.log.blocked_since_ns, self.log.blocked_by, strict=True):
            if steps and steps[-1][0] == since_ns:
                steps.pop()
            if not steps or steps[-1][1] != by:
                steps.append((since_ns, by))
        return steps

    def facts(self) -> dict[str, Any]:
        """Everything that law 12 compares."""
        columns, log = self.columns, self.log
        tables: dict[str, Any] = {
            name: list(column) for name, column in vars(columns).items() if hasattr(column, "typecode")
        }
        return {
            **tables,
            "reasons": columns.reason,
            "details": columns.detail,
            "step ends": list(log.steps.ends_ns),
            "decode step ends": list(log.decode_ends_ns),
            "tokens": [self.token_times_ns(row) for row in range(len(self.world.rows))],
            "peak blocks": self.core.peak_used_blocks,
            "deferrals": dict(log.deferrals),
            "blocked": self.blocked(),
            "evicted": self.core.store.evicted_blocks,
            "free at the end": self.core.store.free_blocks,
            "end": self.outcome.end_ns,
            "stopped": self.outcome.stopped,
            "stalled": self.outcome.stalled,
        }


def run(world: World, *, max_stretch: int = FOREVER) -> Run:
    rows = world.rows
    columns = RequestColumns(len(rows))
    log = CheckedLog(columns)
    core = EngineCore(world.spec, log, max_stretch=max_stretch)
    log.core = core
    log.whole_prompt = any(
        isinstance(each, Pack) or (isinstance(each, Admit) and each.whole_prompt) for each in core.passes
    )
    names_per_id = core.block_tokens // core.store.content_tokens

    def content(ids: tuple[int, ...]) -> Content | None:
        if not core.store.knows_contents:
            return None
        return Content(ids, shared_blocks=len(ids) * names_per_id, owner=0, blocks_per_id=names_per_id)

    def make_request(row: int) -> Request:
        given = rows[row]
        request = Request(
            f"r{row}",
            prompt_tokens=given.prompt,
            max_tokens=given.max_tokens,
            arrival_ns=given.arrival_ns,
            priority=given.priority,
            content=content(given.ids),
            row=row,
        )
        log.offered.append(request)
        return request

    simulation = Simulation(
        cores=[core],
        costs=[COSTS[world.cost]],
        logs=[log],
        requests=columns,
        arrivals=Arrivals(
            arrival_ns=[row.arrival_ns for row in rows],
            make_request=make_request,
            stop_after=[row.stop_after for row in rows],
            queue_timeout_ns=[row.queue_timeout_ns for row in rows],
            timeout_ns=[row.timeout_ns for row in rows],
            cancel_after_ns=[row.cancel_after_ns for row in rows],
        ),
        limits=world.limits,
        capacity_events=world.capacity_events,
    )
    outcome = simulation.run()
    return Run(world, core, log, columns, outcome, log.offered)
