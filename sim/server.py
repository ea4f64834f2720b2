"""One engine on a clock: when it plans, how long its plans take, and what happens to them from outside.

A plan is one event, however many steps it holds. What happens outside while it runs ends it at the boundary of the step
in progress, unless it cannot change a decision. With depth 2 a plan is made as the step before it starts to execute.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from costmodel.model import CostModel
from sim.core.engine import EngineCore
from sim.core.lifecycle import Event, State
from sim.core.plan import ADMIT, BatchPlan, Decision, Verdict
from sim.core.request import Request
from sim.results.columns import EngineLog

CANCEL, TIMEOUT, ARRIVAL, CAPACITY, BOUNDARY = range(5)
"""Priorities of events at the same instant."""


class Alarm(Protocol):
    """Something that a clock will call back for. Only its identity matters."""


class Clock(Protocol):
    """What an engine needs of whoever keeps the time."""

    @property
    def now_ns(self) -> int: ...
    def at(self, time_ns: int, priority: int, callback: Callable[[Alarm], None], /) -> Alarm:
        """Call `callback` with the alarm at `time_ns`, after what has a smaller priority at the same instant."""


@dataclass(slots=True)
class Flight:
    """A plan on the clock."""

    plan: BatchPlan
    start_ns: int
    ends_ns: list[int]
    """End of each of its steps."""
    deferred: Decision | None
    deferred_from: int = 0
    """From which of its steps on somebody waits for this reason."""


class Server:
    """One engine on the clock: plans when it may, prices plans, commits them when they have run."""

    def __init__(self, clock: Clock, core: EngineCore, cost: CostModel, log: EngineLog) -> None:
        self.clock = clock
        self.core = core
        self.cost = cost
        self.log = log
        self.depth = core.spec.depth
        self.flights: deque[Flight] = deque()
        self.steps_run = 0
        self.max_steps: int | None = None
        """No plan is made to go beyond this many steps."""
        self.events = 0
        self._tick: Alarm | None = None
        """The next boundary; one that has been replaced does nothing when it comes."""
        self._leaving: dict[Request, tuple[Event, str]] = {}
        """Cancelled or timed out inside a step: they keep their blocks up to its end, and get no token of it."""

    # -- from outside

    def start(self) -> None:
        """Plan at the present instant, after whatever else happens in it."""
        self._tick_at(self.clock.now_ns)

    def submit(self, request: Request, stop_after: int) -> None:
        core, log = self.core, self.log
        log.now_ns = core.now_ns = self.clock.now_ns
        log.requests.waiting_seen[request.row] = core.num_waiting
        decision = core.submit(request, stop_after=stop_after)
        if decision.verdict is Verdict.REJECT:
            return
        if not self.flights:
            if self._tick is None:
                self.start()
            return
        flight = self.flights[-1]
        if flight.plan.steps > 1:
            why = core.why_ignored(request) if decision is ADMIT else decision
            if why is None:
                self._cut()
            elif flight.deferred is None:
                self._note_blocked(why)

    def remove(self, request: Request, event: Event, reason: str) -> None:
        """Cancel or time out a live request: at once if it waits, at the end of the step in progress if it runs."""
        log = self.log
        if request.state is State.RUNNING and self.flights:
            self._leaving.setdefault(request, (event, reason))
            self._cut()
            return
        log.now_ns = self.core.now_ns = self.clock.now_ns
        self.core.cancel(request, event, reason)
        if self.flights:
            self._cut()  # whoever stood behind it may be let in now
        elif self._tick is None:
            self.start()

    def resize(self, total_blocks: int, most_to_come: int) -> None:
        """The pool changes: planning goes by it from the coming boundary on. It will never have more than the most."""
        self.log.now_ns = self.core.now_ns = self.clock.now_ns
        self.core.resize(total_blocks, most_to_come=most_to_come)
        if self.flights:
            self._cut()
        elif self._tick is None and not self.core.idle:
            self.start()

    def _coming_boundary(self, flight: Flight) -> tuple[int, int]:
        """The first boundary of the newest plan from now on: (its steps done by then, the time)."""
        now = self.clock.now_ns
        if now <= flight.start_ns:
            return 0, flight.start_ns
        done = bisect_left(flight.ends_ns, now) + 1
        return done, flight.ends_ns[done - 1]

    def _cut(self) -> None:
        """End the newest plan so that the next is made at the coming boundary."""
        flight = self.flights[-1]
        if flight.plan.steps == 1:
            return
        done, boundary_ns = self._coming_boundary(flight)
        steps = max(1, done + self.depth - 1)
        if steps < flight.plan.steps:
            self.core.cut(flight.plan, steps)
            del flight.ends_ns[steps:]
            self._tick_at(boundary_ns)

    def _note_blocked(self, why: Decision) -> None:
        """The queue was empty and is not now, but nobody will look: say since when and why it is blocked."""
        flight = self.flights[-1]
        done, boundary_ns = self._coming_boundary(flight)
        flight.deferred = why
        flight.deferred_from = max(1, done + self.depth - 1)
        if flight.deferred_from < flight.plan.steps:
            self.log.blocked(boundary_ns, why)

    # -- boundaries

    def _tick_at(self, time_ns: int) -> None:
        self.events += 1
        self._tick = self.clock.at(time_ns, BOUNDARY, self._boundary)

    def _boundary(self, event: Alarm) -> None:
        if event is not self._tick:
            return
        self._tick = None
        now = self.clock.now_ns
        if self.flights:
            self._settle(now)
        while True:
            flight = None if self.max_steps is not None and self._steps_left() <= 0 else self._plan(now)
            if flight is None:
                if self.flights:
                    self._tick_at(self.flights[-1].ends_ns[-1])
                return
            next_ns = self._next_planning(flight)
            if next_ns > now:
                self._tick_at(next_ns)
                return

    def _steps_left(self) -> int:
        assert self.max_steps is not None
        return self.max_steps - self.steps_run - sum(flight.plan.steps for flight in self.flights)

    def _next_planning(self, flight: Flight) -> int:
        """When the plan after this one is made: with depth 2, as its last step starts to execute."""
        ends = flight.ends_ns
        if self.depth == 1:
            return ends[-1]
        return ends[-2] if len(ends) > 1 else flight.start_ns

    def _settle(self, now: int) -> None:
        """Commit what has run by now, letting go of who has left in the step that ends now."""
        core, log, flights = self.core, self.log, self.flights
        while flights:
            flight = flights[0]
            plan, ends = flight.plan, flight.ends_ns
            done = plan.steps if ends[-1] <= now else bisect_right(ends, now)
            scheduled = min(plan.steps, done + self.depth - 1)
            if scheduled > plan.scheduled:
                core.schedule_through(plan, scheduled)
            if self._leaving and done and ends[done - 1] == now:
                self._let_go(flight, done)
            if done:
                log.now_ns = core.now_ns = ends[done - 1]
                core.commit_step(plan, done)
            if done < plan.steps:
                return
            flights.popleft()
            self.steps_run += done
            log.ran(plan, ends, flight.deferred, done - flight.deferred_from)

    def _let_go(self, flight: Flight, done: int) -> None:
        """Deliver what came out before the step that ends now, and none of that one, to who has left in it."""
        if done > 1:
            self.core.commit_step(flight.plan, done - 1)
        self.log.now_ns = self.core.now_ns = self.clock.now_ns
        for request, (event, reason) in self._leaving.items():
            self.core.cancel(request, event, reason)
        self._leaving.clear()

    def _plan(self, now: int) -> Flight | None:
        core, log = self.core, self.log
        assert len(self.flights) < self.depth
        log.now_ns = now
        log.grown(core)
        plan = core.plan_step(now)
        if plan is None:
            log.blocked(now, core.latest_draft.deferred)
            return None
        if self.max_steps is not None:
            core.cut(plan, min(plan.steps, self._steps_left()))
        start = self.flights[-1].ends_ns[-1] if self.flights else now
        times = self.cost.step_times_ns(plan.shape, plan.steps)
        if plan.swapped_blocks:
            times[0] += self._swap_ns(plan.swapped_blocks)
        ends = [start + times[0]] if len(times) == 1 else list(accumulate(times, initial=start))[1:]
        flight = Flight(plan, start, ends, plan.deferred)
        self.flights.append(flight)
        log.planned(plan, start, core)
        return flight

    def _swap_ns(self, blocks: int) -> int:
        """KV moves over the host link before the forward starts (vLLM V0 does both on one stream)."""
        return round(blocks * self.core.spec.host.ns_per_block)

    def close(self) -> None:
        """The run ends here: commit the steps that have run, note how far live requests got."""
        now = self.clock.now_ns
        if self.flights:
            for flight in self.flights:
                # The steps that have run, the one that runs, and with depth 2 the one behind it.
                started = bisect_right(flight.ends_ns, now) + (now >= flight.start_ns)
                steps = min(flight.plan.steps, max(1, started + self.depth - 1))
                self.core.cut(flight.plan, steps)
                self.core.schedule_through(flight.plan, steps)
                del flight.ends_ns[steps:]
            self._settle(now)
        for flight in self.flights:
            committed = flight.plan.committed
            self.log.ran(flight.plan, flight.ends_ns[:committed], flight.deferred, committed - flight.deferred_from)
        core = self.core
        self.log.grown(core)
        for request in [*core.running, *core.waiting, *core.swapped, *(core.front.outside if core.front else ())]:
            self.log.unfinished(request, core)

    def stall(self) -> str | None:
        """Why an engine with requests left has nothing to run; None if nobody is left."""
        core = self.core
        if core.running:
            return (
                f"{len(core.running)} requests run but none can go on: {core.store.free_blocks} of "
                f"{core.store.total_blocks} blocks are free, the step's budget does not reach, or nobody gives way"
            )
        if core.swapped:
            first = core.swapped.first()
            return (
                f"nothing runs, but swapped request {first.id} never comes back: {core.host.held_blocks(first)} blocks"
            )
        if core.waiting:
            head, why = core.waiting.first(), core.latest_draft.deferred
            return (
                f"nothing runs, but request {head.id} at the head of the queue (prompt {head.prompt_tokens} tokens, "
                f"{head.known_tokens} to compute) is never let in: {why.reason if why else 'nobody says why'}"
            )
        return None
