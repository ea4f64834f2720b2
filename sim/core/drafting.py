"""What passes may do while a step is drafted; each verb keeps the sums, the block store and the lifecycle right."""

from __future__ import annotations

from collections.abc import Sequence

from sim.core.events import Admitted, CameBack, GaveWay, RoomMade
from sim.core.lifecycle import Event, after
from sim.core.plan import Decision, Item, PreemptionMode, StepDraft
from sim.core.request import Request
from sim.core.state import EngineState
from sim.kv.store import NO_HIT, Hit

NO_PROGRESS_PREEMPTIONS = 10_000
"""So many preemptions without a token gained in between are not scheduling any more (law 9)."""


class NoProgress(Exception):
    """The engine preempts and resumes for ever, or holds requests that it can never run."""


class Drafting(EngineState):
    """An engine in the middle of scheduling, as its passes see it."""

    __slots__ = ()

    # -- work for who runs

    def schedule_decodes(self, draft: StepDraft) -> None:
        """All members of the cohort decode; the caller has found the blocks and the budget to be there."""
        self.store.take(self.cohort.next_blocks())
        draft.all_decodes = True

    def schedule_decode(self, draft: StepDraft, request: Request, new_blocks: int) -> None:
        """One of them decodes, blocks and budget being there; `tidy_decodes` when all who shall have been named."""
        if draft.decodes is None:
            draft.decodes = self._others_decoding(request) if draft.all_decodes else set()
            draft.all_decodes = False
        draft.decodes.add(request)
        if request in self.learners:
            known = self._in_flight.known_tokens(request, scheduled=1)
            self.store.grow(request, new_blocks, known // self.block_tokens)
        else:
            self.store.take(new_blocks)

    def _others_decoding(self, request: Request) -> set[Request]:
        return {other for other in self.running if other.decoding and other is not request}

    def tidy_decodes(self, draft: StepDraft) -> None:
        """A set of decodes that has become everybody is not a set any more."""
        if draft.decodes is not None and len(draft.decodes) == self.cohort.size:
            draft.all_decodes, draft.decodes = bool(draft.decodes), None

    def schedule_chunk(
        self, draft: StepDraft, request: Request, tokens: int, new_blocks: int, *, admitted: bool = False
    ) -> None:
        """A running request computes `tokens` of what it knows; blocks are there and the budget is spent."""
        context = request.computed
        draft.items.append(Item(request, tokens, context, new_blocks, admitted))
        self.grow(draft, request, new_blocks, (context + tokens) // self.block_tokens)

    def grow(self, draft: StepDraft, request: Request, new_blocks: int, full_blocks: int) -> None:
        """Take blocks for a request that does not decode: now, or after the scan in engines that do."""
        request.held_blocks += new_blocks
        if self._takes_late:
            self.promised_blocks += new_blocks
            self.store.free_blocks -= new_blocks  # promised blocks are not free any more, though nothing is evicted yet
            draft.to_take.append((request, new_blocks, full_blocks))
        else:
            self.store.grow(request, new_blocks, full_blocks)

    def take_promised(self, draft: StepDraft) -> None:
        """The scan is over: take what it has promised."""
        self.store.free_blocks += self.promised_blocks
        self.promised_blocks = 0
        for request, new_blocks, full_blocks in draft.to_take:
            self.store.grow(request, new_blocks, full_blocks)
        draft.to_take.clear()

    # -- queues

    def let_in(self, request: Request, hit: Hit, *, attached: bool = False) -> None:
        """Move a waiting request into the running list with what is cached for it; room was found before."""
        self.waiting.remove(request)
        self._enter_running(request, hit.tokens, Event.ADMIT)
        request.hit_tokens = hit.tokens
        request.held_blocks = hit.blocks
        if not attached:
            self.store.attach(request, hit)
        self.observer.admitted(request)
        if self._listeners:
            self._tell_all(Admitted(request, self.now_ns))

    def reject(self, draft: StepDraft, request: Request, decision: Decision) -> None:
        """An admission test has said that a waiting request shall not run."""
        self.waiting.remove(request)
        draft.rejected += 1
        self._finalise(request, Event.REJECT, decision.reason, decision.detail)

    def lose(self, draft: StepDraft, request: Request, decision: Decision) -> None:
        """A waiting request that cannot start is dropped without an answer (quirk MISFITS_ARE_LOST)."""
        self.waiting.remove(request)
        draft.rejected += 1
        self._finalise(request, Event.FAIL, f"lost: {decision.reason}", decision.detail)

    def fail(self, draft: StepDraft, request: Request, reason: str, detail: str) -> None:
        """A running request cannot go on and ends."""
        self._unschedule(draft, request)
        self._leave_running(request, returns=False)
        draft.rejected += 1
        self._finalise(request, Event.FAIL, reason, detail)

    def preempt(self, draft: StepDraft, victim: Request, *, asker: Request | None = None) -> None:
        """Take a running request's blocks; the policy says what becomes of it. Its share of this step is refunded.

        `asker`: for whose next block; None when room is made for the step as a whole or the pool has shrunk.
        """
        ending = victim in self._in_flight.ending  # its last token is being computed and comes out whatever happens
        mode = PreemptionMode.RECOMPUTE if ending else self.preemption.mode(self, victim)
        lost_tokens, held = victim.computed_tokens, self.held_blocks(victim)
        if not lost_tokens and mode is PreemptionMode.SWAP:
            mode = PreemptionMode.RECOMPUTE  # it came in in this very step: there is nothing to move
        scheduled = self._unschedule(draft, victim)
        draft.preempted.append(victim)
        self._leave_running(victim, returns=mode is not PreemptionMode.FAIL, scheduled=scheduled)
        self.observer.preempted(victim, lost_tokens if mode is PreemptionMode.RECOMPUTE else 0, mode, asker)
        if self._listeners:
            self._tell_all(GaveWay(victim, self.now_ns))
        if mode is PreemptionMode.FAIL:
            self._finalise(victim, Event.FAIL, "out of KV", "the next block is not there and nobody gives way")
        elif mode is PreemptionMode.SWAP:
            self._swap_out(draft, victim, held)
        else:
            self._requeue(victim)
        self._preemptions_since_token += 1
        if self._preemptions_since_token > NO_PROGRESS_PREEMPTIONS:
            raise NoProgress(
                f"{NO_PROGRESS_PREEMPTIONS} preemptions without a token: {victim.id} was the last victim; "
                f"the pool has {self.store.total_blocks} blocks and {len(self.running)} requests run"
            )

    def _unschedule(self, draft: StepDraft, request: Request) -> int:
        """Take a running request out of the draft; returns the tokens that it had been given."""
        if draft.all_decodes:  # now that one of them falls out, they are a set
            draft.decodes = {other for other in self.running if other.decoding}
            draft.all_decodes = False
        item = draft.item_of(request)
        if item is not None:
            self.take_promised(draft)
            draft.items.remove(item)
            draft.meter.refund(item.tokens, item.context, decode=False)
            return item.tokens
        if draft.decodes is not None and request in draft.decodes:
            draft.decodes.remove(request)
            draft.meter.refund(1, request.computed_tokens, decode=True)
            return 1
        return 0

    def _requeue(self, victim: Request) -> None:
        """Recompute: outputs stay, KV is gone, and it waits again."""
        victim.computed = victim.hit_tokens = 0
        victim.preemptions += 1
        if self._outgrown(victim):
            return
        victim.state = after(victim.state, Event.PREEMPT, victim.id)
        if self.spec.requeue == "front":
            self.waiting.push_front(victim)
        else:
            self.waiting.push(victim)

    def _outgrown(self, victim: Request) -> bool:
        """Whether it needs more blocks to go on than there are, and so has ended."""
        need = self.blocks(victim.known_tokens)
        if need <= self.pool_blocks or victim in self._in_flight.ending:
            return False
        detail = f"needs {need} blocks to go on, the pool has {self.pool_blocks}"
        self._finalise(victim, Event.FAIL, "out of KV", detail)
        return True

    def _swap_out(self, draft: StepDraft, victim: Request, held_blocks: int) -> None:
        victim.preemptions += 1
        if self._outgrown(victim):
            return
        if held_blocks > self.host.free_blocks:
            detail = f"needs {held_blocks} blocks on the host, {self.host.free_blocks} are free"
            self._finalise(victim, Event.FAIL, "out of host memory", detail)
            return
        victim.state = after(victim.state, Event.SWAP_OUT, victim.id)
        self.host.take(victim, held_blocks)
        self.swapped.push(victim)
        draft.swapped_out_blocks += held_blocks

    def strand(self, draft: StepDraft, request: Request, decision: Decision) -> None:
        """A swapped request can never come back and ends."""
        self.swapped.remove(request)
        self.host.release(request)
        draft.rejected += 1
        self._finalise(request, Event.FAIL, decision.reason, decision.detail)

    def swap_in(self, draft: StepDraft, request: Request) -> None:
        """Bring a swapped request back into the running list; the caller has found the blocks to be there."""
        self.swapped.remove(request)
        held_blocks = self.host.release(request)
        draft.swapped_in.append(request)
        draft.swapped_in_blocks += held_blocks
        self._enter_running(request, request.computed, Event.SWAP_IN)
        self.store.attach(request, NO_HIT)
        self.store.grow(request, held_blocks, request.computed // self.block_tokens)
        request.held_blocks = held_blocks
        if self.would_decode(request):
            self._start_decoding(request)
        self.observer.swapped_in(request, held_blocks)
        if self._listeners:
            self._tell_all(CameBack(request, self.now_ns))

    def rearrange(self, requests: Sequence[Request]) -> None:
        """Put these running requests into this list order, behind the others."""
        for request in requests:
            del self.running[request]
            self.running[request] = None
            self._latest_seq += 1
            request.seq = self._latest_seq
            if request in self.prefilling:
                del self.prefilling[request]
                self.prefilling[request] = None
            else:
                self._decode_seq = request.seq

    def tell_room_made(self, survivors: Sequence[Request]) -> None:
        """To policies that adapt to it."""
        self._tell_all(RoomMade(tuple(survivors)))
