"""The engine core: owns queues, requests and blocks; turns passes into plans and outcomes into progress.

One step of a synchronous engine, as a driver goes through it:

    core.submit(request, stop_after=answer_tokens)   # queued, or rejected at once
    plan = core.plan_step()                          # blocks are taken, victims freed, requests admitted
    ...the forward runs...
    core.commit_step(plan, plan.steps)               # tokens come out, endings free their blocks

A plan that holds for several steps may be cut short (`cut`) when something happens outside. With depth 2 the next plan
is made before the last one is committed.
"""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.shape import StepShape
from sim.core.admit import Admit
from sim.core.cohort import FOREVER, DecodeCohort
from sim.core.endings import Endings
from sim.core.in_flight import InFlight
from sim.core.lifecycle import Event, State, after
from sim.core.observer import Observer
from sim.core.passes import arranged, forwards
from sim.core.plan import ADMIT, BatchPlan, Decision, Item, StepDraft, Verdict, reject
from sim.core.request import Request
from sim.core.spec import EngineSpec, Quirk
from sim.kv.store import Hit

NO_PROGRESS_PREEMPTIONS = 10_000
"""So many preemptions without a token gained in between are not scheduling any more (law 9)."""


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


class NoProgress(Exception):
    """The engine preempts and resumes for ever, or holds requests that it can never run."""


class EngineCore:
    """One engine's state and its only writer. See the module for the protocol; all times are the caller's."""

    def __init__(self, spec: EngineSpec, observer: Observer | None = None, *, max_stretch: int = FOREVER) -> None:
        self.spec = spec
        self.observer = observer or Observer()
        self.max_stretch = max_stretch
        """The most steps a plan may hold; 1 makes every step a plan of its own."""
        self.store = spec.store()
        self.block_tokens = self.store.block_tokens
        self.passes = arranged(spec.passes, spec.budget.serve)
        self.waiting = spec.order.queue()
        self.running: dict[Request, None] = {}
        self.prefilling: dict[Request, None] = {}
        """Of the running: those with more to compute than the next decode's token, in list order."""
        self.cohort = DecodeCohort(self.block_tokens, self._decoded)
        self.reserved_blocks = 0
        self.peak_used_blocks = 0
        self.nothing_planned = StepDraft(spec.budget.open(self), spec.admission.open(self))
        """What the passes said when `plan_step` last returned None."""
        self._endings = Endings()
        self.learners: dict[Request, None] = {}
        """Decoding requests whose output others may hit: their blocks must be registered as they fill."""
        self._in_flight = InFlight(spec.depth, self.cohort, self._endings)
        self._prefill_tokens_out = 0 if Quirk.PREFILL_EMITS_NOTHING in spec.quirks else 1
        self._latest_seq = 0
        self._decode_seq = 0
        """No decode was admitted after this number."""
        self._arrivals = 0
        self._plans = 0
        self._turn = forwards(self.passes)
        self._forward = 0
        """Which of the turn's forwards comes next."""
        self._preemptions_since_token = 0

    # -- what policies may ask

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def final_kv_tokens(self, request: Request) -> int:
        return request.prompt_tokens + request.max_tokens - self._prefill_tokens_out

    def held_blocks(self, request: Request) -> int:
        """Blocks that a running request holds, shared ones included."""
        return self.blocks(request.computed_tokens) if request.decoding else request.held_blocks

    @property
    def used_blocks(self) -> int:
        return self.store.total_blocks - self.store.free_blocks

    @property
    def committed_step(self) -> int:
        """Cohort steps whose tokens have been delivered."""
        return self._in_flight.committed_step

    @property
    def idle(self) -> bool:
        return not (self.running or self.waiting or self._in_flight.plans)

    @property
    def decodes_come_first(self) -> bool:
        """Whether every decode stands before every prefill in list order."""
        return not self.prefilling or next(iter(self.prefilling)).seq > self._decode_seq

    # -- requests come and go

    def submit(self, request: Request, *, stop_after: int) -> Decision:
        """Queue a request, or refuse what can never run; the decision says why.

        `stop_after` is the executor's promise that the answer has exactly so many tokens (>= 1) unless max_tokens ends
        it before. It stays out of the policies' sight.
        """
        self._enrol(request)
        decision = fit_model_length(self.spec, request)
        if decision is ADMIT:
            decision = self.spec.admission.feasible(self, request)
        if decision.verdict is Verdict.REJECT:
            self._finalise(request, Event.REJECT, decision.reason, decision.detail)
            return decision
        self._endings.promise(request, stop_after)
        self.waiting.push(request)
        return decision

    def _enrol(self, request: Request) -> None:
        self._arrivals += 1
        request.arrival_number = self._arrivals
        if request.content is not None:
            request.content.owner = self._arrivals

    def cancel(self, request: Request, event: Event = Event.CANCEL, reason: str = "") -> None:
        """Take a live request out, blocks and all, at once; tokens in flight are never delivered.

        Also for timeouts and failures, by `event`. Call it at a step boundary, before that step is committed.
        """
        if request.state is State.QUEUED:
            self.waiting.remove(request)
        else:
            self._leave_running(request, returns=False)
        self._finalise(request, event, reason)

    def delivered_run(self, request: Request) -> tuple[int, int]:
        """The cohort steps start .. stop - 1, unbroken up to now, that have brought a decoding request its tokens."""
        if not request.decoding:
            return 0, 0
        return request.join_step, max(request.join_step, self._in_flight.committed_step)

    def delivered_tokens(self, request: Request) -> int:
        """Output tokens that have come out; those of forwards in flight have not."""
        start, stop = self.delivered_run(request)
        return request.outputs + stop - start - self._in_flight.undelivered_tokens(request)

    def place(self, request: Request, *, computed_tokens: int, output_tokens: int, stop_after: int) -> None:
        """Put a request into the running list as it is mid-way (an initial state); its blocks are taken.

        With all known tokens computed but the newest it decodes, else it is in its prefill.
        """
        self._enrol(request)
        self._endings.promise(request, stop_after)
        held = self.blocks(computed_tokens)
        hit = self.store.match(request, most_blocks=computed_tokens // self.block_tokens)
        if held - hit.blocks + hit.free_blocks > self.store.free_blocks:
            raise ValueError(
                f"initial state: request {request.id} needs {held} blocks, {self.store.free_blocks} are free"
            )
        request.outputs = output_tokens
        self._enter_running(request, computed_tokens)
        self.store.admit(request, hit, held - hit.blocks, computed_tokens // self.block_tokens)
        request.held_blocks = held
        lacking = request.known_tokens - computed_tokens
        if lacking < self._prefill_tokens_out:
            raise ValueError(f"initial state: request {request.id} has {computed_tokens} computed tokens, all it knows")
        if lacking == self._prefill_tokens_out:
            self._start_decoding(request)
        self.peak_used_blocks = max(self.peak_used_blocks, self.used_blocks)

    def next_draft(self) -> StepDraft:
        """The next step's draft as it would be now with every decode in it, to try a test on; nothing is taken."""
        draft = StepDraft(self.spec.budget.open(self), self.spec.admission.open(self))
        draft.meter.spend_decodes(self.cohort.size, self.cohort.context_tokens)
        return draft

    def why_ignored(self, arrived: Request) -> Decision | None:
        """Why a request just submitted need not end the stretch in progress; None if it must be looked at."""
        why: Decision | None = None
        for step_pass in self.passes:
            if isinstance(step_pass, Admit):
                why = step_pass.why_ignored(self, arrived)
                if why is None:
                    return None
        return why

    # -- planning

    def plan_step(self) -> BatchPlan | None:
        """Run the engine's passes up to the next forward; None if there is nothing to run.

        Applies what real engines apply while scheduling: blocks taken and evicted, victims freed, prefixes registered,
        requests moved between queues. A step in which everybody lost his blocks is a plan without work.
        """
        if self.spec.depth > 1:
            self._set_aside_ended()
        plan = self._plan_from(self._forward)
        if plan is None and self._forward:  # the rest of a turn had nothing to run; a new turn may have
            plan = self._plan_from(0)
        return plan

    def _plan_from(self, forward: int) -> BatchPlan | None:
        """The first forward of the turn, from this one on, that has something to run."""
        draft = StepDraft(self.spec.budget.open(self), self.spec.admission.open(self))
        for number, (passes, run) in enumerate(self._turn[forward:], start=forward + 1):
            for apply in passes:
                apply(self, draft)
            if not draft.empty:
                self._forward = 0 if run.restart or number == len(self._turn) else number
                return self._seal(draft)
        self._forward = 0
        self.nothing_planned = draft
        return self._seal(draft) if draft.preempted else None

    def _set_aside_ended(self) -> None:
        """Depth 2: a request whose last token is in flight is not scheduled again if its length says so.

        If only its text does (an end token), nobody knows yet, and it is scheduled once more, in vain.
        """
        for request in self._endings.pop_due(self.cohort.step):
            self._in_flight.ending[request] = self._in_flight.known_tokens(request, scheduled=0)
            if self._endings.by_length(request):
                self._stop_decoding(request)

    def _seal(self, draft: StepDraft) -> BatchPlan:
        """Turn a draft into a plan: counters move on, as in vLLM, before the forward has run."""
        cohort = self.cohort
        decode_step, context = cohort.step, cohort.context_tokens
        decodes = cohort.size if draft.all_decodes else 0
        if draft.decodes is not None:
            decodes = len(draft.decodes)
            context -= self._advance_some(draft.decodes)
        elif decodes:
            cohort.step += 1
        shape = StepShape(
            tuple([(item.tokens, item.context) for item in draft.items]), decodes, context if decodes else 0
        )
        self._plans += 1
        plan = BatchPlan(self._plans, draft, shape=shape, decode_step=decode_step)
        for item in draft.items:
            request = item.request
            request.computed += item.tokens
            if request.computed == request.prompt_tokens + request.outputs:
                item.emits = self._prefill_tokens_out > 0
                request.outputs += self._prefill_tokens_out
                self._start_decoding(request)
        if draft.all_decodes and not draft.items:
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
        running request decodes; nobody was preempted, rejected or is about to end; whoever waits is blocked by
        something that only an event can change; the next ending, block shortage, and block that a waiting request
        could hit are outside.
        """
        cohort = self.cohort
        if draft.preempted or draft.rejected or self._in_flight.ending or cohort.size != len(self.running):
            return 1
        steps = min(self._endings.next_step() - plan.decode_step, self.max_stretch)
        if steps > 1 and self.learners:
            steps = min(steps, self._steps_to_next_full_block())
        for step_pass in self.passes:
            if steps <= 1:
                return 1
            steps = min(steps, step_pass.steady_steps(self, plan))
        if steps > 1:
            steps = 1 + cohort.affordable_steps(self.store.free_blocks, steps - 1)
        return steps

    def _steps_to_next_full_block(self) -> int:
        """Steps up to the one in which an output fills a block that others may hit: it must open a plan."""
        size, lag = self.block_tokens, self.spec.depth - 1
        return min(size - (request.computed_tokens - lag) % size for request in self.learners)

    # -- what passes do to the draft

    def blocks_to_add(self, request: Request, tokens: int) -> int:
        """Blocks that a running request lacks for computing `tokens` more."""
        if request.decoding:
            return 1 if request.computed_tokens % self.block_tokens == 0 else 0
        return max(0, self.blocks(request.computed + tokens) - request.held_blocks)

    def schedule_decodes(self, draft: StepDraft) -> None:
        """All members of the cohort decode; the caller has found the blocks and the budget to be there."""
        self.store.take(self.cohort.next_blocks())
        draft.all_decodes = True

    def schedule(self, draft: StepDraft, request: Request, tokens: int, new_blocks: int) -> None:
        """A running request computes `tokens`; the caller has found the blocks to be there and spent the budget."""
        if request.decoding:
            assert draft.decodes is not None
            draft.decodes.add(request)
            if request in self.learners:
                known = self._in_flight.known_tokens(request, scheduled=1)
                self.store.grow(request, new_blocks, known // self.block_tokens)
            else:
                self.store.take(new_blocks)
            return
        draft.items.append(
            Item(request, tokens=tokens, context=request.computed, new_blocks=new_blocks, admitted=False)
        )
        request.held_blocks += new_blocks
        self.store.grow(request, new_blocks, (request.computed + tokens) // self.block_tokens)

    def admit(self, draft: StepDraft, request: Request, hit: Hit, tokens: int, held_blocks: int) -> None:
        """Move a waiting request into the running list with its first chunk; budget spent and room found before."""
        self.waiting.remove(request)
        context = hit.blocks * self.block_tokens
        self._enter_running(request, context)
        request.hit_tokens = context
        request.held_blocks = held_blocks
        new_blocks = held_blocks - hit.blocks
        self.store.admit(request, hit, new_blocks, (context + tokens) // self.block_tokens)
        draft.items.append(
            Item(request, tokens=tokens, context=context, new_blocks=new_blocks, admitted=True, hit_tokens=context)
        )
        self.observer.admitted(request)

    def reject(self, draft: StepDraft, request: Request, decision: Decision) -> None:
        """An admission test has said that a waiting request shall not run."""
        self.waiting.remove(request)
        draft.rejected += 1
        self._finalise(request, Event.REJECT, decision.reason, decision.detail)

    def preempt(self, draft: StepDraft, victim: Request) -> None:
        """Recompute: all blocks go, outputs stay, back to the queue. What it had been granted in this step returns."""
        if draft.all_decodes:  # now that one of them falls out, they are a set
            draft.decodes = {request for request in self.running if request.decoding}
            draft.all_decodes = False
        lost_tokens = victim.computed_tokens
        item = draft.item_of(victim)
        scheduled = 0
        if item is not None:
            scheduled = item.tokens
            draft.items.remove(item)
            draft.meter.refund(item.tokens, item.context, decode=False)
        elif draft.decodes is not None and victim in draft.decodes:
            scheduled = 1
            draft.decodes.remove(victim)
            draft.meter.refund(1, lost_tokens, decode=True)
        draft.preempted.append(victim)
        self._leave_running(victim, returns=True, scheduled=scheduled)
        victim.computed = victim.hit_tokens = 0
        victim.preemptions += 1
        self.observer.preempted(victim, lost_tokens)
        need, total = self.blocks(victim.known_tokens), self.store.total_blocks
        if need > total and victim not in self._in_flight.ending:
            self._finalise(victim, Event.FAIL, "out of KV", f"needs {need} blocks to go on, the pool has {total}")
            return
        victim.state = after(victim.state, Event.PREEMPT, victim.id)
        self.waiting.push_front(victim)
        self._preemptions_since_token += 1
        if self._preemptions_since_token > NO_PROGRESS_PREEMPTIONS:
            raise NoProgress(
                f"{NO_PROGRESS_PREEMPTIONS} preemptions without a token: {victim.id} was the last victim; "
                f"the pool has {self.store.total_blocks} blocks and {len(self.running)} requests run"
            )

    # -- outcomes

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
        self.schedule_through(plan, steps)
        plan.committed = steps
        if plan.decode_requests:
            self._preemptions_since_token = 0
            in_flight.deliver(plan, self.observer.decoded)
        if steps < plan.steps:
            return []
        in_flight.plans.popleft()
        for item in plan.items:
            if item.emits and item.request in self._endings:
                self._preemptions_since_token = 0
                self.observer.prefilled(item.request)
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
        if request.state is State.QUEUED:  # preempted with its last token in flight
            self.waiting.remove(request)
        else:
            self._leave_running(request, returns=False, over=not early)
        self._finalise(request, Event.FINISH, "length" if length else "stop")

    # -- the one place for each change of state

    def _enter_running(self, request: Request, computed_tokens: int) -> None:
        self._latest_seq += 1
        request.seq = self._latest_seq
        request.computed = computed_tokens
        request.state = after(request.state, Event.ADMIT, request.id)
        self.running[request] = None
        self.prefilling[request] = None
        request.reserved_blocks = self.spec.admission.reservation(self, request)
        self.reserved_blocks += request.reserved_blocks

    def _leave_running(self, request: Request, *, returns: bool, scheduled: int = 0, over: bool = False) -> None:
        """Take a request out of the running list and give its blocks back.

        `scheduled`: tokens that it had been given in the step being drafted. `over`: its last token is delivered.
        """
        known = self._in_flight.known_tokens(request, scheduled=scheduled, over=over)
        held = self.blocks(request.computed_tokens + scheduled) if request.decoding else request.held_blocks
        if request.decoding:
            self._stop_decoding(request, last_step=FOREVER if returns else self._in_flight.committed_step)
        del self.running[request]
        self.prefilling.pop(request, None)
        self.store.release(request, held, known // self.block_tokens, returns=returns)
        request.held_blocks = 0
        self.reserved_blocks -= request.reserved_blocks
        request.reserved_blocks = 0

    def _start_decoding(self, request: Request) -> None:
        self.prefilling.pop(request, None)
        self._decode_seq = max(self._decode_seq, request.seq)
        self.cohort.join(request)
        self._endings.enter(request, self.cohort.step)
        if self.store.learns_from(request):
            self.learners[request] = None

    def _stop_decoding(self, request: Request, *, last_step: int = FOREVER) -> None:
        """It leaves the cohort; tokens after `last_step`, or after its end, never come out."""
        request.held_blocks = self.blocks(request.computed_tokens)
        self.cohort.leave(request, last_step=min(last_step, self._endings.leave(request)))
        self.learners.pop(request, None)
        self._in_flight.stop_decoding(request)

    def _decoded(self, request: Request, start: int, stop: int) -> None:
        """A run of cohort steps is over for a request; a token still in flight is reported when it is delivered."""
        self.observer.decoded(request, start, self._in_flight.owe(request, start, stop))

    def _finalise(self, request: Request, event: Event, reason: str, detail: str = "") -> None:
        request.state = after(request.state, event, request.id)
        request.outputs -= self._in_flight.undelivered_tokens(request)
        self._in_flight.forget(request)
        self._endings.forget(request)
        self.observer.ended(request, reason, detail)

    def _note_peak(self) -> None:
        used = self.store.total_blocks - self.store.free_blocks
        if used > self.peak_used_blocks:
            self.peak_used_blocks = used

    def check_invariants(self) -> None:
        """Laws 4, 10 and 11 on the state between two steps; AssertionError on our own bugs."""
        self.cohort.check_invariants(request for request in self.running if request.decoding)
        for request in self.running:
            assert request.state is State.RUNNING
            assert self.held_blocks(request) >= self.blocks(request.computed_tokens)
        assert len(self.running) <= self.spec.max_running
        assert self.reserved_blocks == sum(request.reserved_blocks for request in self.running)
        self.store.check_invariants(sum(map(self.held_blocks, self.running)))
        if not self.running:
            assert self.store.free_blocks == self.store.total_blocks
