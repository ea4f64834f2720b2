"""Small random worlds for tests of policies: an engine short of everything, requests that come, leave and hit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from costmodel.model import CostModel
from costmodel.shape import StepShape
from sim.core.cohort import FOREVER
from sim.core.engine import EngineCore
from sim.core.lifecycle import TERMINAL, State
from sim.core.plan import BatchPlan
from sim.core.request import Request
from sim.core.spec import EngineSpec
from sim.driver import Arrivals, Limits, Outcome, Simulation
from sim.engines import UNKNOWN_HARDWARE, Reference, VllmV1
from sim.kv.content import Content
from sim.kv.host import HostSpec
from sim.results.columns import EngineLog, RequestColumns
from sim.results.tokens import expand

STEP_NS = 1_000_000
LIMITS = Limits(max_steps=3000)


class EvenCost:
    """Every step takes the same time."""

    def __init__(self, step_ns: int = STEP_NS) -> None:
        self.step_ns = step_ns

    def step_times_ns(self, shape: StepShape, steps: int) -> list[int]:
        return [self._step_ns(shape.after(step)) for step in range(steps)]

    def _step_ns(self, shape: StepShape) -> int:
        return self.step_ns

    def seconds(self, shape: StepShape) -> float:
        return self._step_ns(shape) / 1e9

    def parts(self, shape: StepShape) -> dict[str, float]:
        return {"step": self.seconds(shape)}

    def out_of_range(self, shape: StepShape) -> str | None:
        return None


class UnevenCost(EvenCost):
    """The time depends on every part of a step's shape, so that a wrong shape shows."""

    def _step_ns(self, shape: StepShape) -> int:
        prefill = sum(7 * tokens + tokens * context // 3 for tokens, context in shape.prefill)
        return self.step_ns // 2 + 1000 * (prefill + 31 * shape.decode_requests + shape.decode_context_tokens // 2)


@dataclass(frozen=True, slots=True)
class Row:
    """A request of the workload, its truth included. Times in ns; -1 = never."""

    arrival_ns: int
    prompt: int
    max_tokens: int
    stop_after: int
    priority: int = 0
    client: str = ""
    ids: tuple[int, ...] = ()
    queue_timeout_ns: int = -1
    timeout_ns: int = -1
    cancel_after_ns: int = -1


@dataclass(frozen=True, slots=True)
class World:
    spec: EngineSpec
    rows: tuple[Row, ...]

    def having(self, kind: str, policy: Any) -> World:
        """The same world with this policy in the place of the engine's own."""
        return replace(self, spec=replace(self.spec, **{kind: policy}))

    def __str__(self) -> str:
        store = self.spec.new_store()
        pool = f"{store.total_blocks} blocks of {store.block_tokens}, {self.spec.max_running} slots"
        return "\n".join([f"engine {self.spec.name}: {pool}, depth {self.spec.depth}", *map(str, self.rows)])


def random_world(rng: Random, kind: str) -> World:
    """A world in which a policy of this kind has something to decide."""
    block, blocks = rng.choice((1, 4, 16)), rng.randint(3, 30)
    make = rng.choice((_reference, _vllm)) if kind != "eviction" else _reference
    spec = replace(make(rng, block, blocks, kind), host=HostSpec(rng.randint(1, 2 * blocks), 1000.0))
    return World(spec, _random_rows(rng, block, blocks))


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


def _random_rows(rng: Random, block: int, blocks: int) -> tuple[Row, ...]:
    longest = min(block * blocks, 120)
    leaves = rng.choice((0.0, 0.3))
    rows: list[Row] = []
    now = 0

    def moment(most: int) -> int:
        """A time of the order of some steps."""
        return rng.randint(0, 4 * most) * STEP_NS // 4

    def leaving(most: int) -> int:
        return moment(most) if rng.random() < leaves else -1

    for number in range(rng.randint(1, 16)):
        now += moment(4) if rng.random() < 0.6 else 0
        prompt, stop_after = rng.randint(1, longest), rng.randint(1, 30)
        parent = rng.choice(rows).ids if rows and rng.random() < 0.6 else ()
        own = range(1000 * number, 1000 * number + prompt)
        rows.append(
            Row(
                arrival_ns=now,
                prompt=prompt,
                max_tokens=stop_after + rng.choice((0, 3, 20)),
                stop_after=stop_after,
                priority=rng.choice((0, 0, 1, 2)),
                client=rng.choice(("", "a", "b")),
                ids=(*parent[: rng.randint(0, len(parent))], *own)[: prompt // block],
                queue_timeout_ns=leaving(20),
                timeout_ns=leaving(50),
                cancel_after_ns=leaving(50),
            )
        )
    return tuple(rows)


class CheckedLog(EngineLog):
    """The real books, with laws 1, 2 and 4 checked after every plan that is made and after every one that ran."""

    def __init__(self, requests: RequestColumns) -> None:
        super().__init__(0, requests)
        self.core: EngineCore | None = None
        self.offered: list[Request] = []
        self.terminal_events: Counter[str] = Counter()
        self.most_tokens = 0
        """In a step."""

    def ended(self, request: Request, reason: str, detail: str) -> None:
        assert request.state in TERMINAL
        assert request.id not in self.terminal_events, f"law 2: {request.id} ends twice"
        self.terminal_events[request.id] += 1
        super().ended(request, reason, detail)

    def planned(self, plan: BatchPlan, start_ns: int, core: EngineCore) -> None:
        super().planned(plan, start_ns, core)
        assert core.store.free_blocks >= 0, "law 4: more blocks are taken than there are"
        self.most_tokens = max(self.most_tokens, plan.shape.tokens)
        self.check()

    def ran(self, plan: BatchPlan, *rest: Any) -> None:
        super().ran(plan, *rest)
        self.check()

    def check(self) -> None:
        assert self.core is not None
        core, states = self.core, Counter(request.state for request in self.offered)
        listed = {State.QUEUED: core.num_waiting, State.RUNNING: len(core.running), State.SWAPPED: len(core.swapped)}
        for state, number in listed.items():
            assert states[state] == number, f"law 1: {states[state]} are {state.value}, {number} are listed"
        assert sum(states[state] for state in TERMINAL) == len(self.terminal_events), "law 1: an end is missing"
        core.check_invariants()


@dataclass(slots=True)
class Run:
    """A world after its run."""

    world: World
    core: EngineCore
    log: CheckedLog
    columns: RequestColumns
    outcome: Outcome

    def token_times_ns(self, row: int) -> list[int]:
        times: list[int] = expand(self.log, row).tolist()
        return times

    def facts(self) -> dict[str, Any]:
        """Everything that two equal runs have in common, however their steps were cut into plans (law 12)."""
        columns, log, journal = self.columns, self.log, self.log.journal
        tables = {name: list(column) for name, column in vars(columns).items() if hasattr(column, "typecode")}
        return {
            **tables,
            "reasons": columns.reason,
            "details": columns.detail,
            "step ends": list(log.steps.ends_ns),
            "tokens": [self.token_times_ns(row) for row in range(len(self.world.rows))],
            "preemptions": journal.preemptions().tolist(),
            "swap-ins": journal.swap_ins().tolist(),
            "blocked heads": [[journal.reasons[code], *row] for *row, code in journal.heads().tolist()],
            "deferrals": dict(log.deferrals),
            "evicted": self.core.store.evicted_blocks,
            "peak blocks": self.core.peak_used_blocks,
            "end": self.outcome.end_ns,
            "stopped": self.outcome.stopped,
            "stalled": self.outcome.stalled,
        }


def run(world: World, *, max_stretch: int = FOREVER, cost: CostModel | None = None) -> Run:
    rows = world.rows
    columns = RequestColumns(len(rows))
    log = CheckedLog(columns)
    log.core = core = EngineCore(world.spec, log, max_stretch=max_stretch)
    simulation = Simulation(
        cores=[core],
        costs=[cost or UnevenCost()],
        logs=[log],
        requests=columns,
        arrivals=_arrivals(rows, lambda row: log.offered.append(row), core.store.knows_contents),
        limits=LIMITS,
    )
    outcome = simulation.run()
    return Run(world, core, log, columns, outcome)


def _arrivals(rows: tuple[Row, ...], offered: Callable[[Request], None], knows_contents: bool) -> Arrivals:
    def make_request(row: int) -> Request:
        given = rows[row]
        request = Request(
            f"r{row}",
            prompt_tokens=given.prompt,
            max_tokens=given.max_tokens,
            arrival_ns=given.arrival_ns,
            priority=given.priority,
            client=given.client,
            content=Content(given.ids, shared_blocks=len(given.ids), owner=0) if knows_contents else None,
            row=row,
        )
        offered(request)
        return request

    return Arrivals(
        arrival_ns=[row.arrival_ns for row in rows],
        make_request=make_request,
        stop_after=[row.stop_after for row in rows],
        queue_timeout_ns=[row.queue_timeout_ns for row in rows],
        timeout_ns=[row.timeout_ns for row in rows],
        cancel_after_ns=[row.cancel_after_ns for row in rows],
    )
