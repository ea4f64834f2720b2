"""The clock: engines, arrivals, timeouts and cancels on one SimPy environment, in integer nanoseconds.

This is the only module that imports SimPy. At one instant the order is cancels, timeouts, arrivals (in input order),
then step boundaries, by event priority. An engine has one event per plan, however many steps that holds. What happens
outside while a plan runs ends it at the boundary of the step in progress, unless it cannot change a decision.
"""

from __future__ import annotations

import signal
import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from types import FrameType
from typing import Any

from simpy import Environment
from simpy.core import EmptySchedule
from simpy.events import Event as SimpyEvent

from costmodel.model import CostModel
from sim.core.engine import EngineCore, NoProgress
from sim.core.lifecycle import Event, State
from sim.core.plan import BatchPlan, Decision, Verdict
from sim.core.request import Request
from sim.results.columns import EngineLog, RequestColumns

CANCEL, TIMEOUT, ARRIVAL, BOUNDARY = range(4)
"""Priorities of events at the same instant."""

EVENTS_PER_PROGRESS = 2048


class At(SimpyEvent):
    """Calls `callback(event)` at `time_ns`, after everything of the same instant with a smaller priority."""

    def __init__(self, env: Environment, time_ns: int, priority: int, callback: Callable[[At], None], tag: Any = None):
        super().__init__(env)
        self._ok = True
        self._value = None
        self.tag = tag
        assert self.callbacks is not None
        self.callbacks.append(callback)  # type: ignore[arg-type]
        env.schedule(self, priority, time_ns - env.now)  # type: ignore[arg-type]


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

    def __init__(self, env: Environment, core: EngineCore, cost: CostModel, log: EngineLog) -> None:
        self.env = env
        self.core = core
        self.cost = cost
        self.log = log
        self.depth = core.spec.depth
        self.flights: deque[Flight] = deque()
        self.steps_run = 0
        self.max_steps: int | None = None
        """No plan is made to go beyond this many steps."""
        self.events = 0
        self._tick: At | None = None
        """The next boundary; one that has been replaced does nothing when it comes."""
        self._leaving: list[tuple[Request, Event, str]] = []
        """Cancelled or timed out inside a step: they keep their blocks up to its end, and get no token of it."""

    # -- from outside

    def start(self) -> None:
        """Plan at the present instant, after whatever else happens in it."""
        self._tick_at(self.env.now)

    def submit(self, request: Request, stop_after: int) -> None:
        core, log = self.core, self.log
        log.now_ns = self.env.now
        log.requests.waiting_seen[request.row] = len(core.waiting)
        if core.submit(request, stop_after=stop_after).verdict is Verdict.REJECT:
            return
        if not self.flights:
            if self._tick is None:
                self.start()
            return
        why = core.ignores(request)
        if why is None:
            self._cut(self.env.now)
        elif self.flights[-1].deferred is None:
            self._note_blocked(why)

    def remove(self, request: Request, event: Event, reason: str) -> None:
        """Cancel or time out a live request: at once if it waits, at the end of the step in progress if it runs."""
        log = self.log
        if request.state is State.RUNNING and self.flights:
            self._leaving.append((request, event, reason))
            self._cut(self.env.now)
            return
        log.now_ns = self.env.now
        self.core.cancel(request, event, reason)
        if self.flights:
            self._cut(self.env.now)  # whoever stood behind it may be let in now
        elif self._tick is None:
            self.start()

    def _boundary_after(self, flight: Flight, time_ns: int) -> tuple[int, int]:
        """The first boundary of the newest plan at or after a time: (its steps done by then, the time)."""
        if time_ns <= flight.start_ns:
            return 0, flight.start_ns
        done = bisect_left(flight.ends_ns, time_ns) + 1
        return done, flight.ends_ns[done - 1]

    def _cut(self, time_ns: int) -> None:
        """End the newest plan so that the next is made at the coming boundary."""
        flight = self.flights[-1]
        done, boundary_ns = self._boundary_after(flight, time_ns)
        steps = max(1, done + self.depth - 1)
        if steps < flight.plan.steps:
            self.core.cut(flight.plan, steps)
            del flight.ends_ns[steps:]
            self._tick_at(boundary_ns)

    def _note_blocked(self, why: Decision) -> None:
        """The queue was empty and is not now, but nobody will look: say since when and why it is blocked."""
        flight = self.flights[-1]
        done, boundary_ns = self._boundary_after(flight, self.env.now)
        flight.deferred = why
        flight.deferred_from = max(1, done + self.depth - 1)
        if flight.deferred_from < flight.plan.steps:
            self.log.blocked(boundary_ns, why)

    # -- boundaries

    def _tick_at(self, time_ns: int) -> None:
        self.events += 1
        self._tick = At(self.env, time_ns, BOUNDARY, self._boundary)

    def _boundary(self, event: At) -> None:
        if event is not self._tick:
            return
        self._tick = None
        now = self.env.now
        if self.flights:
            self._settle(now)
        while True:
            flight = None if self._steps_used_up() else self._plan(now)
            if flight is None:
                if self.flights:
                    self._tick_at(self.flights[-1].ends_ns[-1])
                return
            next_ns = self._next_planning(flight)
            if next_ns > now:
                self._tick_at(next_ns)
                return

    def _steps_used_up(self) -> bool:
        if self.max_steps is None:
            return False
        return self.steps_run + sum(flight.plan.steps for flight in self.flights) >= self.max_steps

    def _next_planning(self, flight: Flight) -> int:
        """When the plan after this one is made: with depth 2, as its last step starts to execute."""
        ends = flight.ends_ns
        if self.depth == 1:
            return ends[-1]
        return ends[-2] if len(ends) > 1 else flight.start_ns

    def _settle(self, now: int) -> None:
        """Commit what has run by now, letting go of who has left in the step that ends now."""
        core, log = self.core, self.log
        leaving, self._leaving = self._leaving, []
        for flight in self.flights:
            done = bisect_right(flight.ends_ns, now)
            core.schedule_through(flight.plan, min(flight.plan.steps, max(1, done + self.depth - 1)))
        if leaving:
            self._commit(now - 1)
            log.now_ns = now
            for request, event, reason in leaving:
                core.cancel(request, event, reason)
        self._commit(now)

    def _commit(self, until_ns: int) -> None:
        """Deliver all steps that have ended by `until_ns`."""
        while self.flights:
            flight = self.flights[0]
            done = bisect_right(flight.ends_ns, until_ns)
            if not done:
                return
            self.log.now_ns = flight.ends_ns[done - 1]
            self.core.commit_step(flight.plan, done)
            if done < flight.plan.steps:
                return
            self.flights.popleft()
            self.steps_run += done
            self.log.ran(flight.plan, flight.ends_ns, flight.deferred, done - flight.deferred_from)

    def _plan(self, now: int) -> Flight | None:
        core, log = self.core, self.log
        log.now_ns = now
        plan = core.plan_step()
        if plan is None:
            log.blocked(now, None)
            return None
        if self.max_steps is not None:
            ahead = sum(flight.plan.steps for flight in self.flights)
            core.cut(plan, max(1, min(plan.steps, self.max_steps - self.steps_run - ahead)))
        start = self.flights[-1].ends_ns[-1] if self.flights else now
        times = self.cost.step_times_ns(plan.shape, plan.steps)
        ends = [start + times[0]] if len(times) == 1 else list(accumulate(times, initial=start))[1:]
        flight = Flight(plan, start, ends, plan.deferred)
        self.flights.append(flight)
        store = core.store
        log.planned(
            plan,
            start_ns=start,
            used_blocks=store.total_blocks - store.free_blocks,
            cached_blocks=store.cached_blocks,
            reserved_blocks=core.reserved_blocks,
            running=len(core.running),
            waiting=len(core.waiting),
        )
        return flight

    def close(self) -> None:
        """The run ends here: commit the steps that have run, note how far live requests got."""
        now = self.env.now
        if self.flights:
            for flight in self.flights:
                done = bisect_right(flight.ends_ns, now)
                steps = min(flight.plan.steps, max(1, done + self.depth - 1))
                self.core.cut(flight.plan, max(steps, flight.plan.scheduled))
                del flight.ends_ns[flight.plan.steps :]
            self._settle(now)
        for flight in self.flights:
            committed = flight.plan.committed
            self.log.ran(flight.plan, flight.ends_ns[:committed], flight.deferred, committed - flight.deferred_from)
        core = self.core
        for request in [*core.running, *core.waiting]:
            undelivered = core.undelivered_tokens(request)
            self.log.unfinished(request, delivered_step=core.committed_step, undelivered_tokens=undelivered)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What comes from outside, by row. Times in ns; -1 = never."""

    arrival_ns: Sequence[int]
    """Never falling."""
    make_request: Callable[[int], Request]
    """Builds a row's request when it arrives, without the truth."""
    stop_after: Sequence[int]
    """The truth: output tokens of each row."""
    first_row: int = 0
    """Rows before it do not arrive: they were running when the run began."""
    queue_timeout_ns: Sequence[int] | None = None
    timeout_ns: Sequence[int] | None = None
    cancel_after_ns: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a run stops early; the result is valid and marked partial."""

    max_time_ns: int | None = None
    max_steps: int | None = None


@dataclass(slots=True)
class Outcome:
    """How a simulation ended."""

    end_ns: int
    events: int
    stopped: str | None = None
    """Why it is partial; None if it ran to its end."""
    stalled: str | None = None
    """Why an engine could not go on although requests were left."""


@dataclass(slots=True)
class Simulation:
    """Engines and a workload on one clock. `run` once."""

    cores: list[EngineCore]
    costs: list[CostModel]
    logs: list[EngineLog]
    requests: RequestColumns
    arrivals: Arrivals
    limits: Limits = field(default_factory=Limits)
    progress: Callable[[int, int], None] | None = None
    """Called now and then with (simulated ns, requests arrived)."""
    env: Environment = field(default_factory=lambda: Environment(initial_time=0))
    servers: list[Server] = field(init=False)
    _next_row: int = 0
    _interrupted: bool = False

    def __post_init__(self) -> None:
        self.servers = [
            Server(self.env, core, cost, log) for core, cost, log in zip(self.cores, self.costs, self.logs, strict=True)
        ]

    def run(self) -> Outcome:
        """Replay to the end, to a limit, or to Ctrl-C."""
        self._next_row = self.arrivals.first_row
        if self._next_row < len(self.arrivals.arrival_ns):
            self._arrive_at_next()
        for server in self.servers:
            server.max_steps = self.limits.max_steps
            if server.core.running:
                server.start()
        outcome = Outcome(0, 0)
        with self._interruptible():
            try:
                outcome.stopped = self._loop()
            except NoProgress as why:
                outcome.stalled = str(why)
        for server in self.servers:
            server.close()
            outcome.events += server.events
        outcome.events += self._next_row - self.arrivals.first_row
        outcome.end_ns = self.env.now
        if not outcome.stopped and not outcome.stalled:
            outcome.stalled = next(filter(None, map(_stall, self.servers)), None)
        return outcome

    def _loop(self) -> str | None:
        """Process events; returns why it stopped before the last one."""
        env, limits = self.env, self.limits
        max_time = limits.max_time_ns
        while True:
            for _ in range(EVENTS_PER_PROGRESS):
                if max_time is not None and env.peek() > max_time:
                    if env.peek() == float("inf"):
                        return None
                    env.run(until=max_time) if max_time > env.now else None
                    return f"--max-sim-time {max_time / 1e9:g} s"
                if limits.max_steps is not None and self._steps() >= limits.max_steps:
                    return f"--max-steps {limits.max_steps}"
                if self._interrupted:
                    return "Ctrl-C"
                try:
                    env.step()
                except EmptySchedule:
                    return None
            if self.progress is not None:
                self.progress(int(env.now), self._next_row)

    def _steps(self) -> int:
        return sum(server.steps_run for server in self.servers)

    # -- arrivals and departures

    def _arrive_at_next(self) -> None:
        At(self.env, self.arrivals.arrival_ns[self._next_row], ARRIVAL, self._arrive)

    def _arrive(self, event: At) -> None:
        """Submit every row of this instant, in input order."""
        times, now = self.arrivals.arrival_ns, self.env.now
        row = self._next_row
        while row < len(times) and times[row] == now:
            self._submit(row)
            row += 1
        self._next_row = row
        if row < len(times):
            self._arrive_at_next()

    def _submit(self, row: int) -> None:
        arrivals = self.arrivals
        request = arrivals.make_request(row)
        server = self.servers[0]
        self.requests.engine[row] = 0
        self._leave_later(server, request, arrivals.cancel_after_ns, CANCEL, _cancel)
        self._leave_later(server, request, arrivals.timeout_ns, TIMEOUT, _time_out)
        self._leave_later(server, request, arrivals.queue_timeout_ns, TIMEOUT, _time_out_in_queue)
        server.submit(request, arrivals.stop_after[row])

    def _leave_later(
        self,
        server: Server,
        request: Request,
        delays_ns: Sequence[int] | None,
        priority: int,
        leave: Callable[[Server, Request], None],
    ) -> None:
        delay = delays_ns[request.row] if delays_ns is not None else -1
        if delay >= 0:
            At(self.env, self.env.now + delay, priority, lambda _: leave(server, request))

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Between events Ctrl-C only asks the loop to stop, so that the result stays whole."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def interrupt(number: int, frame: FrameType | None) -> None:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _cancel(server: Server, request: Request) -> None:
    if request.state in (State.QUEUED, State.RUNNING):
        server.remove(request, Event.CANCEL, "client")


def _time_out(server: Server, request: Request) -> None:
    if request.state in (State.QUEUED, State.RUNNING):
        server.remove(request, Event.TIME_OUT, "timeout")


def _time_out_in_queue(server: Server, request: Request) -> None:
    """Only a request that has never been admitted can exceed its queue timeout."""
    if request.state is State.QUEUED and not request.preemptions:
        server.remove(request, Event.TIME_OUT, "queue timeout")


def _stall(server: Server) -> str | None:
    """Why an engine with requests left has nothing to run; None if nobody is left."""
    core = server.core
    if core.running:
        return (
            f"{len(core.running)} requests run but none can go on: {core.store.free_blocks} of "
            f"{core.store.total_blocks} blocks are free and preemption policy "
            f"{type(core.spec.preemption).__name__} lets nobody give way"
        )
    if core.waiting:
        head = core.waiting.first()
        return f"nothing runs, but request {head.id} at the head of the queue cannot be admitted: {head!r}"
    return None
