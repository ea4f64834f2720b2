"""What an engine holds - queues, running requests, blocks - and every change that can be made to it.

Passes ask for changes while a step is drafted (`schedule`, `admit`, `preempt`, ...); each keeps the sums, the block
store and the lifecycle right. When steps are drafted and what comes of them is `sim.core.engine`'s business.
"""

from __future__ import annotations

from sim.core.cohort import FOREVER, DecodeCohort
from sim.core.endings import Endings
from sim.core.in_flight import InFlight
from sim.core.lifecycle import Event, State, after
from sim.core.observer import Observer
from sim.core.plan import Decision, Item, StepDraft
from sim.core.request import Request
from sim.core.spec import EngineSpec, Quirk
from sim.kv.store import Hit

NO_PROGRESS_PREEMPTIONS = 10_000
"""So many preemptions without a token gained in between are not scheduling any more (law 9)."""


class NoProgress(Exception):
    """The engine preempts and resumes for ever, or holds requests that it can never run."""


class EngineState:
    """The state and its only writer. Policies read it through `sim.policies.protocols.EngineView`."""

    def __init__(self, spec: EngineSpec, observer: Observer | None = None) -> None:
        self.spec = spec
        self.observer = observer or Observer()
        self.store = spec.store()
        self.block_tokens = self.store.block_tokens
        self.waiting = spec.order.queue()
        self.running: dict[Request, None] = {}
        """In list order: of last admission."""
        self.prefilling: dict[Request, None] = {}
        """Of the running: those with more to compute than the next decode's token, in list order."""
        self.cohort = DecodeCohort(self.block_tokens, self._decoded)
        self.learners: dict[Request, None] = {}
        """Decoding requests whose output others may hit: their blocks must be registered as they fill."""
        self.reserved_blocks = 0
        self.peak_used_blocks = 0
        self._endings = Endings()
        self._in_flight = InFlight(spec.depth, self.cohort, self._endings)
        self._prefill_tokens_out = 0 if Quirk.PREFILL_EMITS_NOTHING in spec.quirks else 1
        self._latest_seq = 0
        self._decode_seq = 0
        """No decode was admitted after this number."""
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
    def decodes_come_first(self) -> bool:
        """Whether every decode stands before every prefill in list order."""
        return not self.prefilling or next(iter(self.prefilling)).seq > self._decode_seq

    # -- what a driver may ask

    @property
    def idle(self) -> bool:
        return not (self.running or self.waiting or self._in_flight.plans)

    @property
    def committed_step(self) -> int:
        """Cohort steps whose tokens have been delivered."""
        return self._in_flight.committed_step

    def delivered_run(self, request: Request) -> tuple[int, int]:
        """The cohort steps start .. stop - 1, unbroken up to now, that have brought a decoding request its tokens."""
        if not request.decoding:
            return 0, 0
        return request.join_step, max(request.join_step, self._in_flight.committed_step)

    def delivered_tokens(self, request: Request) -> int:
        """Output tokens that have come out; those of forwards in flight have not."""
        start, stop = self.delivered_run(request)
        return request.outputs + stop - start - self._in_flight.undelivered_tokens(request)

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
        self.store.attach(request, hit)
        self.store.grow(request, new_blocks, (context + tokens) // self.block_tokens)
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
        if self.store.knows_contents and self.store.learns_from(request):
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
        self.peak_used_blocks = max(self.peak_used_blocks, self.used_blocks)

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
