"""The engine core: turns passes into plans, and outcomes into progress.

One step of a synchronous engine, as a driver goes through it:

    core.submit(request, stop_after=answer_tokens)   # queued, or rejected at once
    plan = core.plan_step()                          # blocks are taken, victims freed, requests admitted
    ...the forward runs...
    core.commit_step(plan, plan.steps)               # tokens come out, endings free their blocks

A plan may hold for several steps. The driver tells how far it got (`schedule_through`: so many of its steps have been
scheduled, `commit_step`: so many have run), and may end it early (`cut`) when something happens outside. With depth 2
the next plan is made before the last one is committed; by then all steps of that one have been scheduled.

The core is built in layers, one file each, and each knows only those below: `state` (what there is), `drafting` (what
passes may do to a step), `delivery` (what comes of a plan), `planning` (turns and stretches), and here: how requests
come and go.
"""

from __future__ import annotations

from sim.core.cohort import FOREVER
from sim.core.lifecycle import Event
from sim.core.observer import Observer
from sim.core.plan import ADMIT, Decision, Verdict, reject
from sim.core.planning import Planning
from sim.core.request import Request
from sim.core.spec import EngineSpec, Quirk
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


class EngineCore(Planning):
    """One engine. See the module for the protocol; all times are the caller's."""

    __slots__ = ("_arrivals",)

    def __init__(self, spec: EngineSpec, observer: Observer | None = None, *, max_stretch: int = FOREVER) -> None:
        super().__init__(spec, observer, max_stretch=max_stretch)
        self._arrivals = 0

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
