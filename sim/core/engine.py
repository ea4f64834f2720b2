"""The engine core: turns passes into plans, and outcomes into progress.

One step of a synchronous engine, as a driver goes through it:

    core.submit(request, stop_after=answer_tokens)   # queued, or rejected at once
    plan = core.plan_step()                          # blocks are taken, victims freed, requests admitted
    ...the forward runs...
    core.commit_step(plan, plan.steps)               # tokens come out, endings free their blocks

A plan may hold for several steps. The driver tells how far it got (`schedule_through`: so many of its steps have been
scheduled, `commit_step`: so many have run), and may end it early (`cut`) when something happens outside. With depth 2
the next plan is made before the last one is committed; by then all steps of that one have been scheduled.
"""

from __future__ import annotations

from costmodel.shape import StepShape
from sim.core.cohort import FOREVER
from sim.core.delivery import Delivering
from sim.core.events import WentIdle
from sim.core.lifecycle import Event
from sim.core.observer import Observer
from sim.core.passes import Admitting, Advance, arranged, forwards
from sim.core.plan import ADMIT, BatchPlan, Decision, StepDraft, Verdict, reject
from sim.core.request import Request
from sim.core.spec import EngineSpec, Quirk
from sim.core.swap import with_swap_in
from sim.kv.content import Content


def fit_model_length(spec: EngineSpec, request: Request) -> Decision:
    """Prompt and max_tokens against the model's longest sequence (case C4); may lower max_tokens."""
    limit, prompt, asked = spec.max_model_len, request.prompt_tokens, request.max_tokens
    if prompt > limit:
        return reject("prompt > max_model_len", f"prompt of {prompt} tokens > max_model_len {limit}")
    if prompt == limit:
        detail = f"prompt of {prompt} tokens leaves no room for output: max_model_len {limit}"
        return reject("prompt = max_model_len", detail)
    if prompt + asked > limit:
        if spec.longer_than_model == "reject":
            detail = f"prompt {prompt} + max_tokens {asked} = {prompt + asked} > max_model_len {limit}"
            return reject("prompt + max_tokens > max_model_len", detail)
        request.max_tokens = limit - prompt
    return ADMIT


class EngineCore(Delivering):
    """One engine. See the module for the protocol; all times are the caller's."""

    __slots__ = (
        "_admits",
        "_admits_first",
        "_arrivals",
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
        self._arrivals = 0
        self._plans = 0
        self._usable_blocks = self.store.total_blocks
        """What the pool shall have; see `resize`."""

    # -- requests come and go

    def submit(self, request: Request, *, stop_after: int) -> Decision:
        """Queue a request, or refuse what can never run; the decision says why. DEFER: it waits outside (`Front`).

        `stop_after` is the executor's promise that the answer has exactly so many tokens (>= 1) unless max_tokens ends
        it before. It stays out of the policies' sight.
        """
        self._enrol(request)
        decision = fit_model_length(self.spec, request)
        if decision is ADMIT:
            decision = self.admission.feasible(self, request)
        if decision is ADMIT and self.front is not None:
            decision = self.front.receive(self, request)
        if decision.verdict is Verdict.REJECT:
            self._finalise(request, Event.REJECT, decision.reason, decision.detail)
            return decision
        self._endings.promise(request, stop_after)
        if decision is ADMIT:
            self.waiting.push(request)
        else:
            self.observer.kept_out(request)
        return decision

    def _enrol(self, request: Request) -> None:
        self._arrivals += 1
        request.number = self._arrivals
        if request.content is not None:
            request.content.owner = self._arrivals
        elif self.store.knows_contents:
            request.content = Content((), shared_blocks=0, owner=self._arrivals)

    def cancel(self, request: Request, event: Event = Event.CANCEL, reason: str = "") -> None:
        """Take a live request out, blocks and all, at once; tokens in flight are never delivered.

        Also for timeouts and failures, by `event`. Call it at a step boundary, before that step is committed.
        """
        outside = self.front is not None and request in self.front.outside
        if Quirk.LEAVERS_RUN_ON in self.spec.quirks and event is not Event.FAIL and not outside:
            self._marked.setdefault(request, (event, reason))
            return
        self._leave(request)
        self._finalise(request, event, reason)

    def place(self, request: Request, *, computed_tokens: int, output_tokens: int, stop_after: int) -> None:
        """Put a request into the running list as it is mid-way (an initial state); its blocks are taken.

        With all known tokens computed but the newest it decodes, else it is in its prefill.
        """
        lacking = request.prompt_tokens + output_tokens - computed_tokens
        if lacking < self._prefill_tokens_out:
            raise ValueError(f"initial state: request {request.id} has {computed_tokens} computed tokens, all it knows")
        if len(self.running) == self.spec.max_running:
            raise ValueError(
                f"initial state: request {request.id} has no sequence slot, there are {self.spec.max_running}"
            )
        self._enrol(request)
        held = self.blocks(computed_tokens)
        hit = self.store.match(request, most_blocks=computed_tokens // self.block_tokens)
        if held - hit.blocks + hit.free_blocks > self.store.free_blocks:
            raise ValueError(
                f"initial state: request {request.id} needs {held} blocks, {self.store.free_blocks} are free"
            )
        self._endings.promise(request, stop_after)
        request.outputs = output_tokens
        self._enter_running(request, computed_tokens, Event.ADMIT)
        self.store.attach(request, hit)
        self.store.grow(request, held - hit.blocks, computed_tokens // self.block_tokens)
        request.held_blocks = held
        if lacking == self._prefill_tokens_out:
            self._start_decoding(request)
        self._note_peak()

    def why_ignored(self, arrived: Request) -> Decision | None:
        """Why a request just submitted need not end the stretch planned last; None if it must be looked at."""
        why: Decision | None = None
        for admit in self._admits:
            why = admit.why_ignored(self, arrived, self.latest_draft)
            if why is None:
                return None
        return why

    # -- the pool changes

    def resize(self, total_blocks: int, *, most_to_come: int | None = None) -> None:
        """The pool shall have so many usable blocks from the next step on (memory that jitters).

        It shrinks as far as it can: cached contents go first, then victims of the preemption policy; what nobody gives
        up is taken as it comes free. `most_to_come`: it will never have more again; who waits and needs more is refused
        now. By default it may come back to its size.
        """
        self._usable_blocks = total_blocks
        self.most_blocks = max(self.most_blocks, total_blocks)
        self.pool_blocks = max(self.pool_blocks, total_blocks) if most_to_come is None else most_to_come
        if most_to_come is not None:
            self._refuse_hopeless()

    def _refuse_hopeless(self) -> None:
        """End whoever waits and can never start in the pool as it will be."""
        for request in list(self.waiting):
            decision = self.admission.feasible(self, request)
            if decision.verdict is Verdict.REJECT and request not in self._in_flight.ending:
                self.waiting.remove(request)
                self._finalise(request, Event.REJECT, decision.reason, decision.detail)

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

    # -- planning

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
