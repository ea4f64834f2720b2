"""Small worlds for tests: an engine short of everything, requests that come, leave and hit, a run that is checked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
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
from sim.kv.content import Content
from sim.results.columns import EngineLog, RequestColumns
from sim.results.tokens import expand
from sim.testing.engines import random_engine

STEP_NS = 1_000_000
LIMITS = Limits(max_steps=3000)


class EvenCost:
    """Every step takes the same time, so that arrivals, deadlines and step ends often fall on one instant."""

    def __init__(self, step_ns: int = STEP_NS) -> None:
        self.step_ns = step_ns

    def step_times_ns(self, shape: StepShape, steps: int) -> list[int]:
        return [self.step_ns] * steps

    def seconds(self, shape: StepShape) -> float:
        return self.step_times_ns(shape, 1)[0] / 1e9

    def parts(self, shape: StepShape) -> dict[str, float]:
        return {"step": self.seconds(shape)}

    def out_of_range(self, shape: StepShape) -> str | None:
        return None


class UnevenCost(EvenCost):
    """The time depends on every part of a step's shape, so that a wrong shape shows; `step_ns` is its scale."""

    def step_times_ns(self, shape: StepShape, steps: int) -> list[int]:
        return [self._step_ns(shape.after(step)) for step in range(steps)]

    def _step_ns(self, shape: StepShape) -> int:
        prefill = sum(7 * tokens + tokens * context // 3 for tokens, context in shape.prefill)
        work = prefill + 31 * shape.decode_requests + shape.decode_context_tokens // 2
        return self.step_ns * (500 + work) // 1000


@dataclass(frozen=True, slots=True)
class Row:
    """A request of the workload, its truth included. Times in ns; -1 = never."""

    arrival_ns: int
    prompt: int
    max_tokens: int
    stop_after: int
    priority: int = 0
    ids: tuple[int, ...] = ()
    client: str = ""
    queue_timeout_ns: int = -1
    timeout_ns: int = -1
    cancel_after_ns: int = -1


@dataclass(frozen=True, slots=True)
class Traffic:
    """How much comes at random: the most of each, or several to choose from by chance."""

    requests: tuple[int, ...] = (16,)
    pause_steps: tuple[int, ...] = (4,)
    prompt_parts: tuple[int, ...] = (1,)
    """1: prompts as long as the pool allows, 4: a quarter of that."""
    answers: tuple[int, ...] = (30,)


@dataclass(frozen=True, slots=True)
class World:
    """An engine and what comes to it. `capacity_events`: (time in ns, blocks of the pool from then on)."""

    spec: EngineSpec
    rows: tuple[Row, ...]
    cost: CostModel = field(default_factory=UnevenCost)
    limits: Limits = field(default_factory=Limits)
    capacity_events: tuple[tuple[int, int], ...] = ()

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
    spec = random_engine(rng, block, blocks, kind)
    rows = [replace(row, client=rng.choice(("", "a", "b"))) for row in random_rows(rng, block, blocks, Traffic())]
    return World(spec, tuple(rows), limits=LIMITS)


def random_rows(rng: Random, block: int, blocks: int, traffic: Traffic, step_ns: int = STEP_NS) -> tuple[Row, ...]:
    """Requests for a pool of so many blocks; some are too long for it. `step_ns`: about what a step takes."""
    capacity = block * blocks
    longest = min(capacity + capacity // 8, 120)
    pause = rng.choice(traffic.pause_steps)
    leaves = rng.choice((0.0, 0.0, 0.3))
    known = rng.choice((0.0, 0.5, 1.0))
    rows: list[Row] = []
    now = 0

    def moment(most: int) -> int:
        """A time of the order of some steps, often at a step's end."""
        return rng.randint(0, 4 * most) * step_ns // 4

    def leaving(most: int) -> int:
        return moment(most) if rng.random() < leaves else -1

    for _ in range(rng.randint(1, rng.choice(traffic.requests))):
        now += moment(pause) if rng.random() < 0.6 else 0
        prompt = rng.randint(1, max(1, longest // rng.choice(traffic.prompt_parts)))
        stop_after = rng.randint(1, rng.choice(traffic.answers))
        max_tokens = max(1, stop_after + rng.choice((0, 0, 3, 20, -1)))
        named = prompt + stop_after if rng.random() < known else prompt
        ids = _random_ids(rng, rows, named // block)
        row = Row(now, prompt, max_tokens, stop_after, priority=rng.choice((0, 0, 1, 2)), ids=ids)
        rows.append(replace(row, queue_timeout_ns=leaving(20), timeout_ns=leaving(50), cancel_after_ns=leaving(50)))
    return tuple(rows)


def _random_ids(rng: Random, rows: list[Row], count: int) -> tuple[int, ...]:
    """Names of so many blocks: often the first are those of an earlier request."""
    parent = rng.choice(rows).ids if rows and rng.random() < 0.6 else ()
    own = range(1000 * len(rows), 1000 * len(rows) + count)
    return (*parent[: rng.randint(0, len(parent))], *own)[:count]


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

    @property
    def requests(self) -> list[Request]:
        """Those that have come."""
        return self.log.offered

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
        """Everything that two equal runs have in common, however their steps were cut into plans (law 12)."""
        columns, log, journal = self.columns, self.log, self.log.journal
        tables = {name: list(column) for name, column in vars(columns).items() if hasattr(column, "typecode")}
        return {
            **tables,
            "reasons": columns.reason,
            "details": columns.detail,
            "step ends": list(log.steps.ends_ns),
            "decode step ends": list(log.decode_ends_ns),
            "tokens": [self.token_times_ns(row) for row in range(len(self.world.rows))],
            "preemption events": journal.preemptions().tolist(),
            "swap-ins": journal.swap_ins().tolist(),
            "blocked": self.blocked(),
            "blocked heads": [[journal.reasons[code], *row] for *row, code in journal.heads().tolist()],
            "deferrals": dict(log.deferrals),
            "evicted": self.core.store.evicted_blocks,
            "free at the end": self.core.store.free_blocks,
            "peak blocks": self.core.peak_used_blocks,
            "end": self.outcome.end_ns,
            "stopped": self.outcome.stopped,
            "stalled": self.outcome.stalled,
        }


def run(world: World, *, max_stretch: int = FOREVER, books: type[CheckedLog] = CheckedLog) -> Run:
    columns = RequestColumns(len(world.rows))
    log = books(columns)
    log.core = core = EngineCore(world.spec, log, max_stretch=max_stretch)
    simulation = Simulation(
        cores=[core],
        costs=[world.cost],
        logs=[log],
        requests=columns,
        arrivals=_arrivals(world.rows, core, log.offered),
        limits=world.limits,
        capacity_events=world.capacity_events,
    )
    return Run(world, core, log, columns, simulation.run())


def _arrivals(rows: tuple[Row, ...], core: EngineCore, offered: list[Request]) -> Arrivals:
    names_per_id = core.block_tokens // core.store.content_tokens

    def make_request(row: int) -> Request:
        given = rows[row]
        content = Content(given.ids, shared_blocks=len(given.ids) * names_per_id, owner=0, blocks_per_id=names_per_id)
        request = Request(
            f"r{row}",
            prompt_tokens=given.prompt,
            max_tokens=given.max_tokens,
            arrival_ns=given.arrival_ns,
            priority=given.priority,
            client=given.client,
            content=content if core.store.knows_contents else None,
            row=row,
        )
        offered.append(request)
        return request

    return Arrivals(
        arrival_ns=[row.arrival_ns for row in rows],
        make_request=make_request,
        stop_after=[row.stop_after for row in rows],
        queue_timeout_ns=[row.queue_timeout_ns for row in rows],
        timeout_ns=[row.timeout_ns for row in rows],
        cancel_after_ns=[row.cancel_after_ns for row in rows],
    )
