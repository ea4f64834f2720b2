"""The passes that engines are made of: serve who runs (here), admit who waits (`sim.core.admit`), run what was drafted.

A pass holds parameters and no state. `apply` works on a draft; `steady_steps` promises for how many steps of a
pure-decode plan it would do the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from sim.core.cohort import FOREVER
from sim.core.plan import StepDraft

if TYPE_CHECKING:
    from sim.core.plan import BatchPlan
    from sim.core.request import Request
    from sim.core.state import EngineState


class Pass(Protocol):
    def apply(self, core: EngineState, draft: StepDraft, /) -> None: ...
    def steady_steps(self, core: EngineState, plan: BatchPlan, /) -> int: ...


class Run:
    """The barrier: what has been drafted becomes one forward. Then the turn starts anew, or goes on behind it."""

    def __init__(self, *, restart: bool = True) -> None:
        self.restart = restart

    def apply(self, core: EngineState, draft: StepDraft) -> None:
        raise AssertionError("a Run is the engine core's to handle")

    def steady_steps(self, core: EngineState, plan: BatchPlan) -> int:
        return FOREVER if self.restart else 1


class AfterSelfPreemption(Enum):
    """What becomes of the pass when a request without room had to give way itself."""

    END = "end"
    NEXT = "next"


class Advance:
    """Give running requests their next tokens, in the order the budget policy serves them, making room as it can.

    Usually everything fits, and then nothing is walked: the decodes are one sum. Otherwise requests are walked one by
    one, and a victim may be one that this very step had served already. `decodes`, `prefills`: whom it serves.
    """

    def __init__(
        self,
        *,
        decodes: bool = True,
        prefills: bool = True,
        after_self_preemption: AfterSelfPreemption = AfterSelfPreemption.END,
    ) -> None:
        self.decodes = decodes
        self.prefills = prefills
        self.after_self_preemption = after_self_preemption

    def apply(self, core: EngineState, draft: StepDraft) -> None:
        if not core.running:
            return
        if core.learners or not self._all_fit(core, draft):
            self._walk(core, draft)

    def _all_fit(self, core: EngineState, draft: StepDraft) -> bool:
        """Schedule everybody at once if that is what a walk would come to; else leave the draft as it was."""
        cohort, meter = core.cohort, draft.meter
        decodes = cohort.size if self.decodes else 0
        free = core.store.free_blocks - (cohort.next_blocks() if decodes else 0)
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
            core.schedule(draft, request, tokens, blocks)
        return True

    def _take(self, core: EngineState, draft: StepDraft, decodes: int) -> list[tuple[Request, int, int]] | None:
        """Spend for all decodes and for the prefill chunks (request, tokens, blocks).

        None if the order in the list would matter: a prefill stands before a decode and does not get all that it wants.
        """
        meter, context = draft.meter, core.cohort.context_tokens
        in_between = core.spec.budget.serve == "list" and not core.decodes_come_first
        if decodes and not meter.spend_decodes(decodes, context):
            return None
        chunks = []
        for request in core.prefilling:
            want = request.uncomputed_tokens
            tokens = meter.grant(want, request.computed, decode=False, admitting=False) if meter.has_left() else 0
            if in_between and tokens != want:
                return None
            if tokens:
                meter.spend(tokens, request.computed, decode=False)
                chunks.append((request, tokens, core.blocks_to_add(request, tokens)))
        return chunks

    def _walk(self, core: EngineState, draft: StepDraft) -> None:
        if self.decodes:
            draft.decodes = set()
        for request in self._in_order(core):
            if request not in core.running:
                continue  # gave way in this pass
            if not draft.meter.has_left():
                break
            decode, context = request.decoding, request.computed_tokens
            want = 1 if decode else request.uncomputed_tokens
            tokens = draft.meter.grant(want, context, decode=decode, admitting=False)
            if not tokens:
                continue
            blocks = core.blocks_to_add(request, tokens)
            if blocks > core.store.free_blocks and not self._make_room(core, draft, request, blocks):
                if request in core.running or self.after_self_preemption is AfterSelfPreemption.NEXT:
                    continue
                break
            draft.meter.spend(tokens, context, decode=decode)
            core.schedule(draft, request, tokens, blocks)
        if draft.decodes is not None and len(draft.decodes) == core.cohort.size:
            draft.all_decodes, draft.decodes = bool(draft.decodes), None

    def _in_order(self, core: EngineState) -> list[Request]:
        """Whom to serve, in order: a snapshot. Left out: requests that only wait for a token in flight."""
        decodes = [request for request in core.running if request.decoding] if self.decodes else []
        prefills = list(core.prefilling) if self.prefills else []
        if core.spec.budget.serve == "list":
            return sorted(decodes + prefills, key=lambda request: request.seq)
        return decodes + prefills

    def _make_room(self, core: EngineState, draft: StepDraft, request: Request, blocks: int) -> bool:
        """Preempt until `blocks` are free for the request. False: it has to do without, or was the victim itself."""
        while blocks > core.store.free_blocks:
            draft.refused.append(request)
            victim = core.spec.preemption.victim(core, request, draft)
            if victim is None:
                return False
            core.preempt(draft, victim)
            if victim is request:
                return False
        return True

    def steady_steps(self, core: EngineState, plan: BatchPlan) -> int:
        """As long as the budget has room for all decodes; the core sees to their blocks."""
        return core.spec.budget.steady_steps(core, plan)


def arranged(passes: Sequence[Pass], serve: str) -> tuple[Pass, ...]:
    """The passes in the order that a budget serves: with prefills first, decodes come behind admission."""
    if serve != "prefill_first":
        return tuple(passes)
    out: list[Pass] = []
    decodes: Advance | None = None
    for each in passes:
        if isinstance(each, Advance) and each.decodes and each.prefills:
            out.append(Advance(decodes=False, after_self_preemption=each.after_self_preemption))
            decodes = Advance(prefills=False, after_self_preemption=each.after_self_preemption)
            continue
        if isinstance(each, Run) and decodes is not None:
            out.append(decodes)
            decodes = None
        out.append(each)
    return tuple(out)


Forward = tuple[tuple[Callable[["EngineState", StepDraft], None], ...], Run]
"""What is applied before a forward, and the barrier that makes it one."""


def forwards(passes: Sequence[Pass]) -> list[Forward]:
    """A turn cut at its barriers. Raises ValueError if passes come behind the last one: they would never run."""
    cut: list[Forward] = []
    applies: list[Callable[[EngineState, StepDraft], None]] = []
    for each in passes:
        if isinstance(each, Run):
            cut.append((tuple(applies), each))
            applies = []
        else:
            applies.append(each.apply)
    if applies or not cut:
        raise ValueError("an engine's passes must end with a Run")
    return cut
