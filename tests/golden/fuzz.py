"""Differential fuzz: our core and a slow, independent model of vLLM V1's rules live through the same random scenarios.

`vllm_v1/reference.py` knows no stretches, cohorts or runs of blocks: it keeps a list of requests and a list of blocks.
It goes turn by turn; our core goes along step by step (`max_stretch` 1), or in stretches that arrivals and aborts cut
as `sim.server` does, and both must agree wherever our core stands still.

    python -m tests.golden.fuzz --seeds 2000 --from 100000
"""

from __future__ import annotations

import argparse
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from sim.core.batch import batch
from sim.core.cohort import FOREVER
from sim.core.engine import EngineCore
from sim.core.observer import Observer
from sim.core.plan import BatchPlan
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE
from sim.kv.content import Content
from sim.kv.hashed import HashedStore
from tests.golden.scenarios import Abort, Job, Scenario, random_scenario, shrink

MAX_TURNS = 3000
"""Some configurations preempt for ever; so far two engines are followed."""

Facts = dict[str, Any]


def load_reference() -> dict[str, Any]:
    """The names of reference.py, without what it does when it is run."""
    source = (Path(__file__).parent / "vllm_v1" / "reference.py").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(source.partition("\ndef check(")[0], "reference.py", "exec"), names)
    return names


REFERENCE = load_reference()


@dataclass(slots=True)
class Turn:
    """What is known of one turn. None: the engine was in the middle of a stretch then."""

    scheduled: Facts | None = None
    """Right after scheduling."""
    after: Facts | None = None
    """When the turn is over."""
    finished: list[str] = field(default_factory=list)
    evicted: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Story:
    """One engine's way through a scenario."""

    turns: dict[int, Turn] = field(default_factory=lambda: defaultdict(Turn))
    tokens: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """In which turns each request got its tokens."""
    steps: int = 0
    stretched: int = 0
    """Steps that were not the first of their plan."""


# -- the reference


class ReferenceEngine:
    """Goes turn by turn, and keeps the clock: the turns of its story are the turns there are."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        flags = scenario.flags
        config = {
            **flags,
            "num_gpu_blocks": flags["num_gpu_blocks_override"],
            "policy": flags["scheduling_policy"],
            "spec": None,
            "kv_groups": [{"type": "full"}],
        }
        self.model = REFERENCE["M"]({"config": config})
        self.jobs = {job.id: job for job in scenario.jobs}
        self.in_flight: deque[tuple[int, dict[str, int], dict[str, bool]]] = deque()
        self.story = Story()

    def play(self) -> Story:
        arrivals, aborts = deque(self.scenario.jobs), deque(self.scenario.aborts)
        turn, owner = 0, 0
        while arrivals or self.model.reqs or self.in_flight:
            if not (self.model.reqs or self.in_flight):
                turn = max(turn, arrivals[0].turn)
            while arrivals and arrivals[0].turn <= turn:
                owner += 1
                self.arrive(arrivals.popleft(), owner)
            while aborts and (aborts[0].turn < turn or (aborts[0].turn == turn and not aborts[0].during)):
                self.abort(aborts.popleft())
            self.schedule(turn)
            while aborts and aborts[0].turn == turn:
                self.abort(aborts.popleft())
            self.update(turn)
            turn += 1
            if turn > MAX_TURNS:
                break
        return self.story

    def arrive(self, job: Job, owner: int) -> None:
        row = {
            "id": job.id,
            "prompt_len": job.prompt,
            "output_len": job.max_tokens,
            "priority": job.priority,
            "arrival_time": job.arrival,
            "block_ids": job.block_ids(self.scenario.flags["block_size"], owner),
        }
        request = REFERENCE["Req"](row, 1)
        self.model.reqs[job.id] = request
        self.model.push(request)

    def abort(self, abort: Abort) -> None:
        request = self.model.reqs.get(abort.id)
        if request is not None:
            self.model.finish(request)

    def schedule(self, turn: int) -> None:
        model, requests = self.model, self.model.reqs
        model.padded = {}
        tokens, kinds, hits, new_blocks, _, preempted, emits, refused = model.schedule()
        rows = [
            (
                id,
                kinds[id],
                n,
                requests[id].computed - n,
                hits.get(id, 0),
                new_blocks[id][0],
                len(requests[id].blocks[0]),
            )
            for id, n in tokens.items()
        ]
        now = self.story.turns[turn]
        now.scheduled = {"rows": rows, "preempted": preempted, "refused": refused, **self.state()}
        now.evicted = [key for key, _ in model.pool.evicted]
        if tokens:
            self.in_flight.append((turn, tokens, emits))

    def update(self, turn: int) -> None:
        now = self.story.turns[turn]
        while self.in_flight and self.in_flight[0][0] <= turn - self.scenario.depth + 1:
            _, tokens, emits = self.in_flight.popleft()
            for id, n in tokens.items():
                request = self.model.reqs.get(id)
                if request is not None and self.deliver(request, n, emits[id], turn):
                    now.finished.append(id)
        now.after = self.state() | {"computed": {request.id: request.computed for request in self.model.running}}

    def deliver(self, request: Any, n: int, emits: bool, turn: int) -> bool:
        """`check` of reference.py without drafts: what comes out of a request's share of a step. True if it is over."""
        model = self.model
        request.inflight -= n
        stale = request.stale > 0
        if stale:
            request.stale -= n
        if not emits:
            return False
        request.out += 1
        self.story.tokens[request.id].append(turn)
        if model.asy:
            if not stale:
                request.ph -= 1
            if request.status == "R":
                model.cache(request, request.computed - request.ph)
        over: bool = request.nt >= model.c["max_model_len"] or request.out >= self.jobs[request.id].stop_after
        if over:
            model.finish(request)
        return over

    def state(self) -> Facts:
        return {
            "running": [request.id for request in self.model.running],
            "waiting": [request.id for request in self.model.waiting],
            "free": self.model.pool.nfree(),
        }


# -- ours


class Books(Observer):
    def __init__(self, story: Story) -> None:
        self.story = story
        self.live: dict[str, Request] = {}
        self.tokens: list[tuple[str, int, int]] = []
        """(request, -1, turn) for a prefill's token, (request, start, stop) for those of cohort steps."""
        self.turn = 0

    def prefilled(self, request: Request) -> None:
        self.tokens.append((request.id, -1, self.turn))

    def decoded(self, request: Request, start: int, stop: int) -> None:
        self.tokens.append((request.id, start, stop))

    def ended(self, request: Request, reason: str, detail: str) -> None:
        del self.live[request.id]
        if reason in ("length", "stop"):
            self.story.turns[self.turn].finished.append(request.id)


class OurEngine:
    """Our core between the same events, in stretches as `sim.server` cuts them."""

    def __init__(self, scenario: Scenario, *, max_stretch: int, settle_seed: int | None = None) -> None:
        self.scenario = scenario
        self.story = Story()
        self.books = Books(self.story)
        self.core = EngineCore(scenario.config.spec(UNKNOWN_HARDWARE), self.books, max_stretch=max_stretch)
        self.store = self.core.store
        if isinstance(self.store, HashedStore):
            self.store.evictions = []
        self.evicted_before = 0
        self.depth = self.core.spec.depth
        self.flights: deque[tuple[BatchPlan, int]] = deque()
        """Plans and the turns in which their first steps are scheduled."""
        self.leaving: list[Request] = []
        self.decode_turns: list[int] = []
        """In which turn the token of each cohort step comes out."""
        self.settle_at_random = Random(settle_seed) if settle_seed is not None else None

    def play(self, turns: Iterator[int]) -> Story:
        arrivals, aborts = deque(self.scenario.jobs), deque(self.scenario.aborts)
        for turn in turns:
            while arrivals and arrivals[0].turn <= turn:
                self.arrive(arrivals.popleft(), turn)
            while aborts and (aborts[0].turn < turn or (aborts[0].turn == turn and not aborts[0].during)):
                self.abort_before(aborts.popleft(), turn)
            if self.next_planning() <= turn:
                self.settle(turn - 1)
                self.plan(turn)
            while aborts and aborts[0].turn == turn:
                self.abort_during(aborts.popleft(), turn)
            if self.leaving or self.next_planning() <= turn + 1 or self.stops_here():
                self.settle(turn)
                self.note(turn)
        self.settle(max(self.story.turns, default=0) + 2)
        for id, start, stop in self.books.tokens:
            self.story.tokens[id] += [stop] if start < 0 else self.decode_turns[start:stop]
        return self.story

    def stops_here(self) -> bool:
        """Stretches can be read and committed anywhere."""
        return self.settle_at_random is not None and self.settle_at_random.random() < 0.1

    def next_planning(self) -> int:
        if not self.flights:
            return 0
        plan, first = self.flights[-1]
        return first + plan.steps

    def arrive(self, job: Job, turn: int) -> None:
        content = (
            Content(job.ids, shared_blocks=len(job.ids), owner=0)
            if self.scenario.config.enable_prefix_caching
            else None
        )
        request = Request(
            job.id,
            prompt_tokens=job.prompt,
            max_tokens=job.max_tokens,
            arrival_ns=job.arrival,
            priority=job.priority,
            content=content,
        )
        self.books.live[job.id] = request
        self.core.submit(request, stop_after=job.stop_after)
        if self.core.why_ignored(request) is None:
            self.cut(turn)

    def abort_before(self, abort: Abort, turn: int) -> None:
        request = self.books.live.get(abort.id)
        if request is None:
            return
        self.cut(turn)
        if request in self.core.running:
            self.settle(turn - 1)
        if abort.id in self.books.live:
            self.core.cancel(request)

    def abort_during(self, abort: Abort, turn: int) -> None:
        request = self.books.live.get(abort.id)
        if request is None or request in self.leaving:
            return
        if request in self.core.running and self.flights:
            self.leaving.append(request)
        else:
            self.core.cancel(request)
        self.cut(turn + 1)

    def cut(self, turn: int) -> None:
        """Let the plan after this one be made in `turn`."""
        if self.next_planning() > turn:
            plan, first = self.flights[-1]
            self.core.cut(plan, turn - first)

    def plan(self, turn: int) -> None:
        plan = self.core.plan_step()
        if plan is not None:
            self.flights.append((plan, turn))
        rows = batch(self.core, plan) if plan is not None else []
        self.story.turns[turn].scheduled = {
            "rows": [
                (r.request.id, r.kind, r.tokens, r.context, r.hit_tokens, r.new_blocks, r.held_blocks) for r in rows
            ],
            "preempted": [request.id for request in (plan.preempted if plan is not None else [])],
            "refused": [
                request.id for request in (plan.refused if plan is not None else self.core.latest_draft.refused)
            ],
            **self.state(),
        }

    def settle(self, turn: int) -> None:
        """Bring the core to where the reference is at the end of a turn."""
        core = self.core
        for plan, first in self.flights:
            core.schedule_through(plan, min(plan.steps, turn - first + 1))
        if self.leaving:
            self.commit(turn - 1)
            for request in self.leaving:
                core.cancel(request)
            self.leaving = []
        self.commit(turn)

    def commit(self, turn: int) -> None:
        """Deliver the tokens that come out up to a turn."""
        while self.flights:
            plan, first = self.flights[0]
            first_out = first + self.depth - 1
            steps = min(plan.steps, turn - first_out + 1)
            if steps <= 0:
                return
            self.books.turn = first_out + steps - 1
            self.core.commit_step(plan, steps)
            if steps < plan.steps:
                return
            self.flights.popleft()
            self.story.steps += steps
            self.story.stretched += steps - 1
            if plan.decode_requests:
                self.decode_turns += range(first_out, first_out + steps)

    def note(self, turn: int) -> None:
        now = self.story.turns[turn]
        now.after = self.state() | {
            "computed": {request.id: request.computed_tokens for request in self.core.running},
            "evictions": self.store.evicted_blocks,
        }
        if isinstance(self.store, HashedStore) and self.store.evictions is not None:
            now.evicted = self.store.evictions
            self.store.evictions = []

    def state(self) -> Facts:
        return {
            "running": [request.id for request in self.core.running],
            "waiting": [request.id for request in self.core.waiting],
            "free": self.store.free_blocks,
        }


# -- the comparison


def difference(scenario: Scenario, expected: Story, ours: Story) -> str | None:
    """The first difference in words; None if there is none."""
    evicted, evicted_here, evictions, finished = [], [], 0, []
    for turn, now in sorted(expected.turns.items()):
        mine = ours.turns.get(turn, Turn())
        if mine.scheduled is not None and mine.scheduled != now.scheduled:
            return f"turn {turn}, scheduled:\n  ours      {mine.scheduled}\n  reference {now.scheduled}"
        finished += now.finished
        evicted += now.evicted
        evictions += len(now.evicted)
        evicted_here += mine.evicted
        if mine.finished and mine.finished != now.finished:
            return f"turn {turn}, finished: ours {mine.finished}, reference {now.finished}"
        if mine.after is not None:
            should = {**(now.after or {}), "evictions": evictions}
            if mine.after != should:
                return f"turn {turn}, after:\n  ours      {mine.after}\n  reference {should}"
            if _public(evicted) != _public(evicted_here):
                return f"turn {turn}, evicted: ours {evicted_here}, reference {evicted}"
            if finished != [id for past, known in sorted(ours.turns.items()) if past <= turn for id in known.finished]:
                return f"turn {turn}: not all of {finished} have finished"
            evicted, evicted_here = [], []
    for job in scenario.jobs:
        if expected.tokens[job.id] != ours.tokens[job.id]:
            return f"tokens of {job.id}: ours in turns {ours.tokens[job.id]}, reference {expected.tokens[job.id]}"
    return None


def _public(keys: list[int]) -> list[int]:
    """Private contents of requests that are over have no name in our store: only their number can be compared."""
    return [key for key in keys if key >= 0]


def check(
    scenario: Scenario, *, max_stretch: int = FOREVER, settle_seed: int | None = None
) -> tuple[str | None, Story]:
    """Play a scenario on both sides. The difference if there is one, and our story."""
    expected = ReferenceEngine(scenario).play()
    engine = OurEngine(scenario, max_stretch=max_stretch, settle_seed=settle_seed)
    ours = engine.play(iter(expected.turns))
    found = difference(scenario, expected, ours)
    if found is None and max(expected.turns, default=0) < MAX_TURNS:
        engine.core.check_invariants()
        if not engine.core.idle:
            found = f"left at the end: {engine.state()}"
    return found, ours


MODES: dict[str, dict[str, Any]] = {"step by step": {"max_stretch": 1}, "in stretches": {}, "read in between": {}}


def check_seed(seed: int, mode: str, **fixed: Any) -> tuple[str | None, Story]:
    options = {**MODES[mode], "settle_seed": seed if mode == "read in between" else None}
    return check(random_scenario(seed, **fixed), **options)


def report(seed: int, mode: str) -> str:
    """A failing seed, made small."""

    def fails(scenario: Scenario) -> bool:
        try:
            return (
                check(scenario, **{**MODES[mode], "settle_seed": seed if mode == "read in between" else None})[0]
                is not None
            )
        except AssertionError:
            return True

    small = shrink(random_scenario(seed), fails)
    try:
        found = check(small, **MODES[mode])[0]
    except AssertionError as error:
        found = f"AssertionError {error}"
    return f"seed {seed}, {mode}:\n{small}\n{found}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--from", dest="first", type=int, default=100_000)
    options = parser.parse_args()
    steps = stretched = failures = 0
    for seed in range(options.first, options.first + options.seeds):
        for mode in MODES:
            try:
                found, story = check_seed(seed, mode)
            except AssertionError as error:
                found, story = f"AssertionError {error!r}", Story()
            steps += story.steps
            stretched += story.stretched
            if found is not None:
                failures += 1
                print(report(seed, mode), flush=True)
                break
        if failures >= 5:
            break
    print(f"{options.seeds} scenarios, {steps} steps, {stretched} of them in stretches, {failures} differences")


if __name__ == "__main__":
    main()
