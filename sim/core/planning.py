"""From passes to plans: one turn after the other, and for how many steps each plan holds."""

from __future__ import annotations

from costmodel.shape import StepShape
from sim.core.cohort import FOREVER
from sim.core.delivery import Delivering
from sim.core.events import WentIdle
from sim.core.observer import Observer
from sim.core.passes import Admitting, Advance, arranged, forwards
from sim.core.plan import BatchPlan, Decision, StepDraft
from sim.core.request import Request
from sim.core.spec import EngineSpec
from sim.core.swap import with_swap_in


class Planning(Delivering):
    """An engine that plans its next forward, over whatever is queued and running."""

    __slots__ = (
        "_admits",
        "_admits_first",
        "_forward",
        "_plans",
        "_steady",
        "_turn",
        "_usable_blocks",
        "max_stretch",
        "passes",
    )

    def __init__(self, spec: EngineSpec, observer: Observer | None = None, *, max_stretch: int = FOREVER) -> None:
        super().__init__(spec, observer)
        self.max_stretch = max_stretch
        """The most steps a plan may hold; 1 makes every step a plan of its own."""
        passes = arranged(spec.passes, spec.budget.serve)
        self.passes = with_swap_in(passes) if self.preemption.may_swap else passes
        self.latest_draft = StepDraft(self.budget.open(self), self.admission.open(self))
        firsts = [each for each in self.passes if isinstance(each, Admitting | Advance)]
        self._admits_first = not isinstance(firsts[0], Advance) or not firsts[0].decodes
        self._admits = [each for each in self.passes if isinstance(each, Admitting)]
        self._steady = [each.steady_steps for each in self.passes]
        self._turn = forwards(self.passes)
        self._forward = 0
        """Which of the turn's forwards comes next."""
        self._plans = 0
        self._usable_blocks = self.store.total_blocks
        """What the pool shall have; see `resize`."""

    def why_ignored(self, arrived: Request) -> Decision | None:
        """Why a request just submitted need not end the stretch planned last; None if it must be looked at."""
        why: Decision | None = None
        for admit in self._admits:
            why = admit.why_ignored(self, arrived, self.latest_draft)
            if why is None:
                return None
        return why

    def plan_step(self, now_ns: int = 0) -> BatchPlan | None:
        """Run the engine's passes up to the next forward; None if there is nothing to run.

        `now_ns`: the time, for policies that look at it.

        Applies what real engines apply while scheduling: blocks taken and evicted, victims freed, prefixes registered,
        requests moved between queues. A step in which everybody lost his blocks is a plan without work, and so is one
        in which the head of the queue ended and those behind it have not been looked at.
        """
        self.now_ns = now_ns
        if self.spec.depth > 1:
            self._set_aside_ended()
        if self.front is not None:
            self._open_front()
        forward = self._forward
        plan = self._plan_from(forward)
        if plan is None and forward:  # the rest of a turn had nothing to run; a new turn may have
            plan = self._plan_from(0)
        while plan is None and self._open_front():  # the whole queue was refused: the next may come in
            plan = self._plan_from(0)
        if plan is None and not self.running:
            self._tell_all(WentIdle())
        return plan

    def _open_front(self) -> bool:
        """Let those who wait outside come in while there is room; whether anybody did."""
        front, came_in = self.front, False
        while front is not None and front.outside and front.blocks(self) is None:
            request = front.outside.first()
            front.outside.remove(request)
            self.waiting.push(request)
            self.observer.came_in(request)
            came_in = True
        return came_in

    def _plan_from(self, forward: int) -> BatchPlan | None:
        """The first forward of the turn, from this one on, that has something to run."""
        self.latest_draft = draft = StepDraft(self.budget.open(self), self.admission.open(self))
        if self._usable_blocks != self.store.total_blocks:
            self._follow_capacity(draft)
        for number, (passes, run) in enumerate(self._turn[forward:], start=forward + 1):
            for apply in passes:
                apply(self, draft)
            if not draft.empty:
                self._forward = 0 if run.restart or number == len(self._turn) else number
                return self._seal(draft, may_stretch=forward == self._forward == 0)
        self._forward = 0
        self.take_promised(draft)
        goes_on = draft.preempted or (draft.rejected and self.waiting)
        return self._seal(draft, may_stretch=False) if goes_on else None

    def _set_aside_ended(self) -> None:
        """Depth 2: a request whose last token is in flight is not scheduled again if its length says so.

        If only its text does (an end token), nobody knows yet, and it is scheduled once more, in vain.
        """
        for request in self._endings.pop_due(self.cohort.step):
            self._in_flight.ending[request] = self._in_flight.known_tokens(request, scheduled=0)
            if self._endings.by_length(request):
                self._stop_decoding(request)

    def _seal(self, draft: StepDraft, *, may_stretch: bool) -> BatchPlan:
        """Turn a draft into a plan: counters move on, as in vLLM, before the forward has run.

        `may_stretch`: the plan is a whole turn, so that the next would start where this one did.
        """
        if draft.to_take:
            self.take_promised(draft)
        if self.front is not None and draft.deferred is None:
            draft.deferred = self.front.blocks(self)
        cohort = self.cohort
        decode_step, context = cohort.step, cohort.context_tokens
        decodes = cohort.size if draft.all_decodes else 0
        if draft.decodes is not None:
            decodes = len(draft.decodes)
            context -= self._advance_some(draft.decodes)
        elif decodes:
            cohort.step += 1
        # A prompt that was cached whole is a chunk of nothing, but its forward computes the last token again.
        chunks = tuple([(item.tokens or 1, item.context) for item in draft.items]) if draft.items else ()
        shape = StepShape(chunks, decodes, context if decodes else 0)
        self._plans += 1
        plan = BatchPlan(self._plans, draft, shape, decode_step)
        for item in draft.items:
            request = item.request
            request.computed += item.tokens
            if request.computed == request.prompt_tokens + request.outputs:
                item.emits = self._prefill_tokens_out > 0
                request.outputs += self._prefill_tokens_out
                self._start_decoding(request)
        if draft.all_decodes and not draft.items and may_stretch:
            plan.steps = self._steady_steps(plan, draft)
        self._in_flight.plans.append(plan)
        self._note_peak()
        return plan

    def _advance_some(self, decodes: set[Request]) -> int:
        """Move the cohort on for these members; the summed context of the others, who miss the step."""
        cohort, in_flight = self.cohort, self._in_flight
        others = [request for request in self.running if request.decoding and request not in decodes]
        context = sum(request.computed_tokens for request in others)
        unknown = [in_flight.unknown_tokens(request, scheduled=0) for request in others]
        step_before = cohort.step
        if decodes:
            cohort.step += 1
            for request in others:
                cohort.miss(request)
                self._endings.miss(request)
        for request, unknown_before in zip(others, unknown, strict=True):
            in_flight.miss(request, step_before=step_before, unknown_before=unknown_before)
        return context

    def _steady_steps(self, plan: BatchPlan, draft: StepDraft) -> int:
        """How many steps this pure-decode plan stays the same if nothing happens outside.

        Beside this stand the preconditions of a stretch; tests/sim/core/test_stretch.py has one test for each. Every
        running request decodes; nobody was preempted, swapped in, rejected or is about to end; whoever waits, in the
        queue or in front of it, is blocked by something that only an event can change; the next ending, block shortage,
        and block that a waiting request could hit are outside.
        """
        cohort = self.cohort
        disturbed = draft.preempted or draft.rejected or draft.swapped_in
        if disturbed or self._in_flight.ending or cohort.size != len(self.running):
            return 1
        if self.front is not None and self.front.outside and self.front.blocks(self) is None:
            return 1
        if self._usable_blocks != self.store.total_blocks and not self.preemption.timeless:
            return 1  # the pool has still to shrink, and each step asks anew who gives way
        steps = min(self._endings.next_step() - plan.decode_step, self.max_stretch)
        if steps > 1 and self.learners:
            steps = min(steps, self._steps_to_next_full_block())
        for steady_steps in self._steady:
            if steps <= 1:
                return 1
            steps = min(steps, steady_steps(self, plan))
        return 1 + cohort.affordable_steps(self.store.free_blocks, steps - 1) if steps > 1 else 1

    def _steps_to_next_full_block(self) -> int:
        """Steps up to the one in which an output fills a block that others may hit: it must open a plan.

        Where the queue is looked at before the decodes, so must the step behind it.
        """
        size, lag = self.block_tokens, self.spec.depth - 1
        filled = [(request.computed_tokens - lag) % size for request in self.learners]
        return 1 if self._admits_first and 0 in filled else size - max(filled)

    def _follow_capacity(self, draft: StepDraft) -> None:
        """Bring the pool to its new size, or as near to it as it gets."""
        store = self.store
        while store.total_blocks - self._usable_blocks > store.free_blocks:
            if store.reclaim():
                continue
            newest = next(reversed(self.running), None)
            victim = self.preemption.victim(self, newest, draft) if newest is not None else None
            if victim is None:
                break
            self.preempt(draft, victim)
        store.resize(max(self._usable_blocks, store.total_blocks - store.free_blocks))
