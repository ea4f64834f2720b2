"""What is known of steps that have been scheduled and not committed.

With depth 1 a plan is committed before the next is made, and all of this is trivial. With depth 2 (asynchronous
scheduling) a step is planned while the one before runs, so the newest token of every decode is unknown:

    step k      |---- runs ----|                     commit k: its tokens are delivered
    step k + 1         planned |---- runs ----|      planned without them, but counting on them
    step k + 2                       planned |...

Three things follow. A request whose last token is in flight is not scheduled again if its length says so (if only its
text does, it is, in vain). A block is full for the prefix cache only when its tokens are known. And a request that is
preempted or misses a step is still owed the token in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sim.core.cohort import DecodeCohort
from sim.core.endings import Endings
from sim.core.plan import BatchPlan
from sim.core.request import Request


class InFlight:
    """Plans outstanding, and what requests are owed by them. The engine core is the only user."""

    def __init__(self, depth: int, cohort: DecodeCohort, endings: Endings) -> None:
        self.depth = depth
        self.plans: deque[BatchPlan] = deque()
        self.committed_step = 0
        """Cohort steps whose tokens have been delivered."""
        self.ending: dict[Request, int] = {}
        """Over as soon as the oldest plan is committed, with the tokens known when that was found."""
        self._cohort = cohort
        self._endings = endings
        self._late: dict[Request, tuple[int, int]] = {}
        """Cohort steps whose token is owed to a request that has left the cohort or missed a step since."""
        self._missed: dict[Request, tuple[int, int, int]] = {}
        """Who has missed a step: (cohort step after it, before it, unknown tokens before it)."""

    # -- tokens owed

    def undelivered_tokens(self, request: Request) -> int:
        """Of `request.outputs`, how many the forwards in flight have not delivered yet."""
        if not self.plans:
            return 0  # nothing is in flight
        start, stop = self._late.get(request, (0, 0))
        prefill = sum(item.emits and item.request is request for plan in self.plans for item in plan.items)
        return stop - start + prefill

    def owe(self, request: Request, start: int, stop: int) -> int:
        """A request's run of cohort steps start .. stop - 1 is over: up to which step is it delivered already?"""
        delivered = max(start, min(stop, self.committed_step))
        if delivered < stop:
            self._late[request] = (delivered, stop)
        return delivered

    def deliver(self, plan: BatchPlan, decoded: Callable[[Request, int, int], None]) -> None:
        """The plan's committed steps have run; tell `decoded` of late tokens that they brought."""
        self.committed_step = plan.decode_step + plan.committed
        if self._late:
            for request in [late for late, (_, stop) in self._late.items() if stop <= self.committed_step]:
                decoded(request, *self._late.pop(request))

    def forget(self, request: Request) -> None:
        self._late.pop(request, None)
        self.ending.pop(request, None)

    # -- blocks known

    def unknown_tokens(self, request: Request, *, scheduled: int) -> int:
        """1 if a decode's newest computed token was still in flight when it was scheduled, else 0.

        `scheduled`: 1 if it has been given a token in the step being drafted. After a step without it nothing is in
        flight for its next one.
        """
        if self.depth == 1:
            return 0
        decoded = self._cohort.step + scheduled
        if request not in self._missed:
            return min(decoded - request.join_step, 1)
        missed_step, in_flight_step, before = self._missed[request]
        if decoded == missed_step:
            return before if self.committed_step < in_flight_step else 0
        return min(decoded - missed_step - 1, 1)

    def known_tokens(self, request: Request, *, scheduled: int, over: bool = False) -> int:
        """Tokens of a running request that are computed (or being computed) and known: they can fill blocks.

        `scheduled`: what it has been given in the step being drafted. `over`: its last token is delivered.
        """
        computed = request.computed_tokens + scheduled
        if request.decoding:
            if over:
                return min(computed, request.base + self._endings.last_step(request))
            return computed - self.unknown_tokens(request, scheduled=scheduled)
        return computed if over else self.ending.get(request, computed)

    def miss(self, request: Request, *, step_before: int, unknown_before: int) -> None:
        """A decode has missed the step that the cohort has just taken."""
        if self.depth > 1:
            self._missed[request] = (self._cohort.step, step_before, unknown_before)

    def stop_decoding(self, request: Request) -> None:
        self._missed.pop(request, None)

    @property
    def missed(self) -> list[Request]:
        """Decodes that have missed a step since they joined: a delivered token may fill a block of theirs."""
        return list(self._missed)
