"""The passes that engines are made of: serve who runs (here), admit who waits (`sim.core.admit`), run what was drafted.

A pass holds parameters and no state. `apply` works on a draft; `steady_steps` promises for how many steps of a
pure-decode plan it would do the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from enum import Enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from sim.core.cohort import FOREVER
from sim.core.plan import StepDraft

if TYPE_CHECKING:
    from sim.core.drafting import Drafting
    from sim.core.plan import BatchPlan, Decision
    from sim.core.request import Request


class Pass(Protocol):
    def apply(self, core: Drafting, draft: StepDraft, /) -> None: ...
    def steady_steps(self, core: Drafting, plan: BatchPlan, /) -> int: ...


@runtime_checkable
class Admitting(Pass, Protocol):
    """A pass that lets waiting requests in, or makes room for them."""

    def why_ignored(self, core: Drafting, arrived: Request, draft: StepDraft, /) -> Decision | None:
        """Why a request just queued changes nothing in the stretch of a draft; None if it must be looked at."""


class Run:
    """The barrier: what has been drafted becomes one forward. Then the turn starts anew, or goes on behind it."""

    def __init__(self, *, restart: bool = True) -> None:
        self.restart = restart

    def apply(self, core: Drafting, draft: StepDraft) -> None:
        raise AssertionError("a Run is the engine core's to handle")

    def steady_steps(self, core: Drafting, plan: BatchPlan) -> int:
        """Nothing to promise here: a plan that does not end its turn never holds for more than one step."""
        return FOREVER


class AfterSelfPreemption(Enum):
    """What becomes of the pass when a request without room had to give way itself."""

    END = "end"
    NEXT = "next"


class Advance:
    """Give running requests their next tokens, in the order the budget policy serves them, making room as it can.

    Usually everything fits, and then nothing is walked: the decodes are one sum. Otherwise requests are walked one by
    one, and a victim may be one that this very step had served already. `decodes`, `prefills`: whom it serves.
    `spare_blocks`: so many must be free for each decode, whether it needs one or not; `spare_for_prefills`: also for
    each prefill chunk that goes on in a block that its prompt does not fill. `joins_prefills`: decode only
    beside prefill chunks drafted before (a mixed step that would not run for decodes alone).
    """

    def __init__(
        self,
        *,
        decodes: bool = True,
        prefills: bool = True,
        after_self_preemption: AfterSelfPreemption = AfterSelfPreemption.END,
        spare_blocks: int = 0,
        spare_for_prefills: bool = False,
        joins_prefills: bool = False,
    ) -> None:
        self.decodes = decodes
        self.prefills = prefills
        self.after_self_preemption = after_self_preemption
        self.spare_blocks = spare_blocks
        self.spare_for_prefills = spare_for_prefills
        self.joins_prefills = joins_prefills

    def apply(self, core: Drafting, draft: StepDraft) -> None:
        if not core.running or (self.joins_prefills and not draft.items):
            return
        if self.joins_prefills:
            core.take_promised(draft)
        if core.learners or draft.some_decode or not self._all_fit(core, draft):
            self._walk(core, draft)

    def _all_fit(self, core: Drafting, draft: StepDraft) -> bool:
        """Schedule everybody at once if that is what a walk would come to; else leave the draft as it was."""
        cohort, meter = core.cohort, draft.meter
        decodes = cohort.size if self.decodes else 0
        free = core.store.free_blocks - (cohort.next_blocks() if decodes else 0)
        if decodes or (self.spare_for_prefills and core.prefilling):
            free -= self.spare_blocks
        if free < 0:
            return False
        chunks: list[tuple[Request, int, int]] = []
        if self.prefills and core.prefilling:
            before = meter.copy()
            taken = self._take(core, draft, decodes)
            if taken is None or sum(blocks for _, _, blocks in taken) > free:
                draft.meter = before
                return False
            chunks = taken
        elif decodes and not meter.spend_decodes(decodes, cohort.context_tokens):
            return False
        if decodes:
            core.schedule_decodes(draft)
        for request, tokens, blocks in chunks:
            core.schedule_chunk(draft, request, tokens, blocks)
        if chunks and core.admission.charges:
            self._charge(core, draft, chunks)
        return True

    def _take(self, core: Drafting, draft: StepDraft, decodes: int) -> list[tuple[Request, int, int]] | None:
        """Spend for all decodes and for the prefill chunks (request, tokens, blocks).

        None if the order in the list would matter: a prefill stands before a decode and does not get all that it wants.
        """
        meter, context = draft.meter, core.cohort.context_tokens
        in_between = core.budget.serve == "list" and not core.decodes_come_first
        if decodes and not meter.spend_decodes(decodes, context):
            return None
        chunks = []
        for request in core.prefilling:
            want = request.uncomputed_tokens
            tokens = self._grant(core, draft, request, want) if meter.has_left() else None
            if in_between and tokens != want:
                return None
            if tokens is not None:
                meter.spend(tokens, request.computed, decode=False)
                chunks.append((request, tokens, core.blocks_to_add(request, tokens)))
        return chunks

    def _grant(self, core: Drafting, draft: StepDraft, request: Request, want: int) -> int | None:
        """Tokens of an unfinished prompt to compute now; None for nothing. A prompt that was cached whole wants 0."""
        if core.admission.charges:
            want = draft.account.allow(core, request, want)
        tokens = draft.meter.grant(want, request.computed, decode=False, admitting=False)
        return tokens if tokens or (want == 0 and tokens == 0) else None

    def _charge(self, core: Drafting, draft: StepDraft, chunks: list[tuple[Request, int, int]]) -> None:
        for request, tokens, _ in chunks:
            draft.account.charge(core, request, tokens, last=request.computed + tokens == request.known_tokens)

    def _walk(self, core: Drafting, draft: StepDraft) -> None:
        if self.decodes and draft.decodes is None and not draft.all_decodes:
            draft.decodes = set()
        for request in self._in_order(core, draft):
            if request not in core.running:
                continue  # gave way in this pass
            if not draft.meter.has_left():
                break
            decode = request.decoding
            if decode:
                tokens = draft.meter.grant(1, request.computed_tokens, decode=True, admitting=False) or None
            else:
                tokens = self._grant(core, draft, request, request.uncomputed_tokens)
            if tokens is None:
                continue
            blocks = core.blocks_to_add(request, tokens)
            spare = decode or (self.spare_for_prefills and request.known_tokens % core.block_tokens)
            needed = max(blocks, self.spare_blocks) if spare else blocks
            if needed > core.store.free_blocks and not self._make_room(core, draft, request, needed):
                if request in core.running or self.after_self_preemption is AfterSelfPreemption.NEXT:
                    continue
                break
            if decode:
                draft.meter.spend(1, request.computed_tokens, decode=True)
                core.schedule_decode(draft, request, blocks)
            else:
                draft.meter.spend(tokens, request.computed, decode=False)
                core.schedule_chunk(draft, request, tokens, blocks)
                if core.admission.charges:
                    self._charge(core, draft, [(request, tokens, blocks)])
        core.tidy_decodes(draft)

    def _in_order(self, core: Drafting, draft: StepDraft) -> list[Request]:
        """Whom to serve, in order: a snapshot.

        Left out: requests that only wait for a token in flight, and decodes that have their token (come back just now).
        """
        decodes = [one for one in core.running if one.decoding and not draft.has(one)] if self.decodes else []
        prefills = list(core.prefilling) if self.prefills else []
        if core.budget.serve == "list":
            return sorted(decodes + prefills, key=lambda request: request.seq)
        return decodes + prefills

    def _make_room(self, core: Drafting, draft: StepDraft, request: Request, blocks: int) -> bool:
        """Free `blocks` for the request by preemption. False: it has to do without, or was the victim itself."""
        while blocks > core.store.free_blocks:
            draft.refused.append(request)
            if core.store.reclaim():
                continue
            victim = core.preemption.victim(core, request, draft)
            if victim is None:
                return False
            core.preempt(draft, victim, asker=request)
            if victim is request:
                return False
        return True

    def steady_steps(self, core: Drafting, plan: BatchPlan) -> int:
        """As long as the budget has room for all decodes; their blocks are counted here if some must be spare."""
        steps = core.budget.steady_steps(core, plan)
        if self.spare_blocks and self.decodes:
            free = core.store.free_blocks - self.spare_blocks
            steps = 1 + core.cohort.affordable_steps(max(0, free), steps) if free >= 0 else 1
        return steps


class MakeRoom:
    """Before a decode step that does not fit, preempt until it does (SGLang's retraction).

    At least one goes and one stays; if the last one does not fit alone, it ends. `spare_tokens_each`: so many tokens
    per survivor are freed from the prefix cache beside. Survivors go on in the order that the preemption policy gives.
    """

    def __init__(self, *, spare_tokens_each: int = 0) -> None:
        self.spare_tokens_each = spare_tokens_each

    def apply(self, core: Drafting, draft: StepDraft) -> None:
        cohort, store = core.cohort, core.store
        if cohort.next_blocks() <= store.free_blocks:
            return
        decodes = [request for request in core.running if request.decoding]
        while cohort.size > 1 and cohort.next_blocks() > store.free_blocks:
            draft.refused.append(decodes[-1])
            victim = core.preemption.victim(core, decodes[-1], draft)
            if victim is None:
                return
            core.preempt(draft, victim)
            decodes.remove(victim)
            store.make_blank(core.blocks(self.spare_tokens_each * len(decodes)))
        if cohort.next_blocks() > store.free_blocks:
            core.fail(draft, decodes.pop(), "out of KV", "alone, and its next token does not fit")
        core.rearrange(core.preemption.stay_first(decodes))
        core.tell_room_made(decodes)

    def steady_steps(self, core: Drafting, plan: BatchPlan) -> int:
        return FOREVER


def arranged(passes: Sequence[Pass], serve: str) -> tuple[Pass, ...]:
    """The passes in the order that a budget serves: with prefills first, decodes come behind admission."""
    if serve != "prefill_first":
        return tuple(passes)
    out: list[Pass] = []
    decodes: Advance | None = None
    for each in passes:
        if isinstance(each, Advance) and each.decodes and each.prefills:
            prefills, decodes = copy(each), copy(each)
            prefills.decodes = decodes.prefills = False
            out.append(prefills)
            continue
        if isinstance(each, Run) and decodes is not None:
            out.append(decodes)
            decodes = None
        out.append(each)
    return tuple(out)


Forward = tuple[tuple[Callable[["Drafting", StepDraft], None], ...], Run]
"""What is applied before a forward, and the barrier that makes it one."""


def forwards(passes: Sequence[Pass]) -> list[Forward]:
    """A turn cut at its barriers. Raises ValueError if passes come behind the last one: they would never run."""
    cut: list[Forward] = []
    applies: list[Callable[[Drafting, StepDraft], None]] = []
    for each in passes:
        if isinstance(each, Run):
            cut.append((tuple(applies), each))
            applies = []
        else:
            applies.append(each.apply)
    if applies or not cut:
        raise ValueError("an engine's passes must end with a Run")
    return cut
