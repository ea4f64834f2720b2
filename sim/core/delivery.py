"""What comes of a plan: tokens are delivered, prefixes learned, and who is over leaves."""

from __future__ import annotations

from collections.abc import Iterable

from sim.core.drafting import Drafting
from sim.core.events import Ran
from sim.core.lifecycle import Event, State
from sim.core.plan import BatchPlan
from sim.core.request import Request


class Delivering(Drafting):
    """An engine whose plans run, step by step or many at once."""

    __slots__ = ()

    def cut(self, plan: BatchPlan, steps: int) -> None:
        """The plan shall end after `steps` steps: something happened outside."""
        assert plan.scheduled <= steps <= plan.steps
        plan.steps = steps

    def schedule_through(self, plan: BatchPlan, steps: int) -> None:
        """The first `steps` steps of a plan have been scheduled: their blocks are taken, evictions included."""
        more = steps - plan.scheduled
        if more <= 0:
            return
        plan.scheduled = steps
        self.store.take(self.cohort.blocks_for(more))
        self.cohort.step += more
        self._note_peak()

    def commit_step(self, plan: BatchPlan, steps: int, *, stopped: Iterable[Request] = ()) -> list[Request]:
        """The first `steps` steps of the oldest plan have run: deliver, and end what is over. Returns the ended.

        `stopped`: requests that their executor has stopped without having promised it (real executors).
        """
        in_flight = self._in_flight
        assert plan is in_flight.plans[0]
        if steps > plan.scheduled:
            self.schedule_through(plan, steps)
        if self._listeners:
            self._tell_ran(plan, steps - plan.committed)
        plan.committed = steps
        if plan.decode_requests:
            self._preemptions_since_token = 0
            in_flight.deliver(plan, self.observer.decoded)
        if steps < plan.steps:
            return []
        in_flight.plans.popleft()
        hears_computed = self.store.hears_computed
        for item in plan.items:
            if item.emits and item.request in self._endings:
                self._preemptions_since_token = 0
                self.observer.prefilled(item.request)
            if hears_computed and item.request in self.running:
                self.store.computed(item.request, item.context + item.tokens)
        over = self._over(plan)
        early = [request for request in stopped if request not in over]
        if early or self.learners:
            self._end_and_learn([*over, *early], early)
        else:
            for request in over:
                self._finish(request)
        return [*over, *early]

    def _end_and_learn(self, over: list[Request], early: list[Request]) -> None:
        """End these in list order, and where it is their turn, name the blocks of decodes that missed a step.

        Their newest token is known now and may fill a block; their next step, which would name it, comes later.
        """
        missed = [request for request in self._in_flight.missed if request in self.learners and request not in over]
        for request in sorted([*over, *missed], key=lambda request: request.seq):
            if request in missed:
                known = self._in_flight.known_tokens(request, scheduled=0)
                self.store.grow(request, 0, known // self.block_tokens)
            else:
                self._finish(request, early=request in early)

    def _over(self, plan: BatchPlan) -> list[Request]:
        """Requests whose last token this plan has delivered, in list order."""
        # With a later plan out, who ended in this one has been set aside; its own one-token answers are not over yet.
        step = plan.decode_step + (plan.steps if plan.decode_requests else 0)
        over = [] if self._in_flight.plans else self._endings.pop_due(step)
        if self._in_flight.ending:
            # They were set aside when the plan after this one was made, so this plan holds their last token.
            over = sorted([*over, *self._in_flight.ending], key=lambda request: request.seq)
        return over

    def _finish(self, request: Request, *, early: bool = False) -> None:
        """Its last token is delivered. `early`: by its executor's word, before the promised end."""
        length = self._endings.by_length(request) and not early
        self._leave(request, over=not early)
        self._finalise(request, Event.FINISH, "length" if length else "stop")

    def _tell_ran(self, plan: BatchPlan, steps: int) -> None:
        shape, preempted = plan.shape, bool(plan.preempted)
        self._tell_all(Ran(steps, shape.decode_requests, shape.prefill_tokens, preempted))

    def _leave(self, request: Request, *, over: bool = False) -> None:
        """Take a live request out of wherever it is. `over`: its last token is delivered."""
        if request.state is State.RUNNING:
            self._leave_running(request, returns=False, over=over)
        elif request.state is State.SWAPPED:
            self.swapped.remove(request)
            self.host.release(request)
        elif self.front is not None and request in self.front.outside:
            self.front.outside.remove(request)
        else:
            self.waiting.remove(request)
