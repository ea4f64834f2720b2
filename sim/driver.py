"""The clock: engines, arrivals, timeouts and cancels on one SimPy environment, in integer nanoseconds.

This is the only module that imports SimPy. At one instant the order is cancels, timeouts, arrivals (in input order),
then step boundaries, by event priority.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from types import FrameType
from typing import Any

from simpy import Environment
from simpy.core import EmptySchedule

from costmodel.model import CostModel
from sim.core.drafting import NoProgress
from sim.core.engine import EngineCore
from sim.core.lifecycle import TERMINAL, Event, State
from sim.core.request import Request
from sim.results.columns import EngineLog, RequestColumns
from sim.server import ARRIVAL, CANCEL, CAPACITY, TIMEOUT, Alarm, Server

EVENTS_PER_PROGRESS = 2048
INTERRUPTED = "Ctrl-C"
"""Why a run stopped that was interrupted."""


class SimpyClock(Environment):
    """SimPy's environment in integer nanoseconds, with alarms that call back at a time and a priority.

    Alarms go through SimPy's own queue beside its events, and cost a fraction of one: they cannot fail, be waited for
    or carry a value.
    """

    def __init__(self) -> None:
        super().__init__(initial_time=0)

    @property
    def now_ns(self) -> int:
        return self._now  # type: ignore[return-value]

    def at(self, time_ns: int, priority: int, callback: Callable[[Alarm], None]) -> Alarm:
        alarm = _At(callback)
        queue: list[Any] = self._queue
        heappush(queue, (time_ns, priority, next(self._eid), alarm))
        return alarm

    def step(self) -> None:
        queue: list[Any] = self._queue
        if queue and type(queue[0][3]) is _At:
            self._now, _, _, alarm = heappop(queue)
            alarm.callback(alarm)
        else:
            super().step()


class _At:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[Alarm], None]) -> None:
        self.callback = callback


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
    capacity_events: Sequence[tuple[int, int]] = ()
    """(time in ns, usable blocks from then on) of every engine's pool."""
    progress: Callable[[int, int], None] | None = None
    """Called now and then with (simulated ns, requests arrived)."""
    clock: SimpyClock = field(default_factory=SimpyClock)
    servers: list[Server] = field(init=False)
    _departures: list[tuple[Sequence[int], int, Callable[[Server, Request], None]]] = field(init=False)
    """(delays by row, priority, what then) of each way to leave that the workload has."""
    _next_row: int = 0
    _interrupted: bool = False

    def __post_init__(self) -> None:
        self.servers = [
            Server(self.clock, core, cost, log)
            for core, cost, log in zip(self.cores, self.costs, self.logs, strict=True)
        ]

        arrivals = self.arrivals
        ways = (
            (arrivals.cancel_after_ns, CANCEL, _cancel),
            (arrivals.timeout_ns, TIMEOUT, _time_out),
            (arrivals.queue_timeout_ns, TIMEOUT, _time_out_in_queue),
        )
        self._departures = [(delays, priority, leave) for delays, priority, leave in ways if delays is not None]

    def run(self) -> Outcome:
        """Replay to the end, to a limit, or to Ctrl-C."""
        self._next_row = self.arrivals.first_row
        if self._next_row < len(self.arrivals.arrival_ns):
            self._arrive_at_next()
        for number, (time_ns, blocks) in enumerate(self.capacity_events):
            self._resize_at(time_ns, blocks, max(later for _, later in self.capacity_events[number:]))
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
        # The clock itself may have gone on to alarms that had become void.
        outcome.end_ns = self.clock.now_ns if outcome.stopped else max(server.log.now_ns for server in self.servers)
        if not outcome.stopped and not outcome.stalled:
            outcome.stalled = next(filter(None, (server.stall() for server in self.servers)), None)
        return outcome

    def _loop(self) -> str | None:
        """Process events; returns why it stopped before the last one."""
        rows, limits = len(self.arrivals.arrival_ns), self.limits
        limited = limits.max_time_ns is not None or limits.max_steps is not None
        while True:
            for _ in range(EVENTS_PER_PROGRESS):
                if self._next_row == rows and all(server.core.idle for server in self.servers):
                    return None  # what is left on the clock are alarms of requests that have ended
                if limited and (why := self._limit_reached()) is not None:
                    return why
                if self._interrupted:
                    return INTERRUPTED
                try:
                    self.clock.step()
                except EmptySchedule:
                    return None
            if self.progress is not None:
                self.progress(self.clock.now_ns, self._next_row)

    def _limit_reached(self) -> str | None:
        clock, max_time, max_steps = self.clock, self.limits.max_time_ns, self.limits.max_steps
        if max_time is not None and clock.peek() > max_time:
            if max_time > clock.now_ns:
                clock.run(until=max_time)
            return f"--max-sim-time {max_time / 1e9:g} s"
        if max_steps is not None and self._steps() >= max_steps:
            return f"--max-steps {max_steps}"
        return None

    def _steps(self) -> int:
        return sum(server.steps_run for server in self.servers)

    # -- arrivals and departures

    def _arrive_at_next(self) -> None:
        self.clock.at(self.arrivals.arrival_ns[self._next_row], ARRIVAL, self._arrive)

    def _arrive(self, event: Alarm) -> None:
        """Submit every row of this instant, in input order."""
        times, now = self.arrivals.arrival_ns, self.clock.now_ns
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
        for delays_ns, priority, leave in self._departures:
            if delays_ns[row] >= 0:
                self._leave_later(server, request, delays_ns[row], priority, leave)
        server.submit(request, arrivals.stop_after[row])

    def _leave_later(
        self, server: Server, request: Request, delay_ns: int, priority: int, leave: Callable[[Server, Request], None]
    ) -> None:
        self.clock.at(self.clock.now_ns + delay_ns, priority, lambda _: leave(server, request))

    def _resize_at(self, time_ns: int, blocks: int, most_to_come: int) -> None:
        def resize(_: Alarm) -> None:
            for server in self.servers:
                server.resize(blocks, most_to_come)

        self.clock.at(time_ns, CAPACITY, resize)

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
    if request.state not in TERMINAL:
        server.remove(request, Event.CANCEL, "client")


def _time_out(server: Server, request: Request) -> None:
    if request.state not in TERMINAL:
        server.remove(request, Event.TIME_OUT, "timeout")


def _time_out_in_queue(server: Server, request: Request) -> None:
    """Only a request that has never been admitted can exceed its queue timeout."""
    if request.state is State.QUEUED and not request.preemptions:
        server.remove(request, Event.TIME_OUT, "queue timeout")
