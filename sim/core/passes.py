"""The passes that engines are made of: serve who runs, admit who waits, run what was drafted.

A pass holds parameters and no state. `apply` works on a draft; `steady_steps` promises for how many steps of a
pure-decode plan it would do the same again; `ignores` says why a request that has just come changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from sim.core.cohort import FOREVER
from sim.core.plan import ADMIT, Blocker, Decision, StepDraft, Verdict, defer
from sim.kv.store import NO_HIT, Hit

if TYPE_CHECKING:
    from sim.core.engine import EngineCore
    from sim.core.plan import BatchPlan
    from sim.core.request import Request


class Pass(Protocol):
    def apply(self, core: EngineCore, draft: StepDraft, /) -> None: ...
    def steady_steps(self, core: EngineCore, plan: BatchPlan, /) -> int: ...
    def ignores(self, core: EngineCore, arrived: Request, /) -> Decision | None:
        """Why a request that has just been queued changes nothing before the next event; None if it may."""


NO_WORK = defer(Blocker.WORK, "step budget used up")
NO_SLOT = defer(Blocker.SLOTS, "no sequence slot")
NO_CHUNK = defer(Blocker.WORK, "prompt does not fit the step budget")
HAS_PREEMPTED = defer(Blocker.BLOCKS, "the step has preempted")
BATCH_RUNS = defer(Blocker.SLOTS, "the batch before is still running")
BEHIND = defer(Blocker.POLICY, "behind a blocked request")
IRRELEVANT = defer(Blocker.NOTHING, "")
"""A pass that never looks at the queue."""


class Run:
    """The barrier: what has been drafted becomes one forward. Then the turn starts anew, or goes on behind it."""

    def __init__(self, *, restart: bool = True) -> None:
        self.restart = restart

    def apply(self, core: EngineCore, draft: StepDraft) -> None:
        raise AssertionError("a Run is the engine core's to handle")

    def steady_steps(self, core: EngineCore, plan: BatchPlan) -> int:
        return FOREVER if self.restart else 1

    def ignores(self, core: EngineCore, arrived: Request) -> Decision | None:
        return IRRELEVANT


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

    def apply(self, core: EngineCore, draft: StepDraft) -> None:
        if not core.running:
            return
        if core._learners or not self._all_fit(core, draft):
            self._walk(core, draft)

    def _all_fit(self, core: EngineCore, draft: StepDraft) -> bool:
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

    def _take(self, core: EngineCore, draft: StepDraft, decodes: int) -> list[tuple[Request, int, int]] | None:
        """Spend for all decodes and for the prefill chunks (request, tokens, blocks).

        None if the order in the list would matter: a prefill stands before a decode and does not get all that it wants.
        """
        meter, context = draft.meter, core.cohort.context_tokens
        in_between = core.spec.budget.serve == "list" and not core.decodes_come_first
        if decodes and not meter.spend_decodes(decodes, context):
            return None
        chunks = []
        for request in core.prefilling:
            want = request.remaining_prompt_tokens
            tokens = meter.grant(want, request.computed, decode=False, admitting=False) if meter.open() else 0
            if in_between and tokens != want:
                return None
            if tokens:
                meter.spend(tokens, request.computed, decode=False)
                chunks.append((request, tokens, core.blocks_to_add(request, tokens)))
        return chunks

    def _walk(self, core: EngineCore, draft: StepDraft) -> None:
        if self.decodes:
            draft.decodes = set()
        for request in self._in_order(core):
            if request not in core.running:
                continue  # gave way in this pass
            if not draft.meter.open():
                break
            decode, context = request.decoding, request.computed_tokens
            want = 1 if decode else request.remaining_prompt_tokens
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

    def _in_order(self, core: EngineCore) -> list[Request]:
        """Whom to serve, in order: a snapshot. Left out: requests that only wait for a token in flight."""
        decodes = [request for request in core.running if request.decoding] if self.decodes else []
        prefills = list(core.prefilling) if self.prefills else []
        if core.spec.budget.serve == "list":
            return sorted(decodes + prefills, key=lambda request: request.seq)
        return decodes + prefills

    def _make_room(self, core: EngineCore, draft: StepDraft, request: Request, blocks: int) -> bool:
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

    def steady_steps(self, core: EngineCore, plan: BatchPlan) -> int:
        return core.spec.budget.steady_steps(core, plan)

    def ignores(self, core: EngineCore, arrived: Request) -> Decision | None:
        return IRRELEVANT


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


Forward = tuple[tuple[Callable[["EngineCore", StepDraft], None], ...], Run]
"""What is applied before a forward, and the barrier that makes it one."""


def forwards(passes: Sequence[Pass]) -> list[Forward]:
    """A turn cut at its barriers. Raises ValueError if passes come behind the last one: they would never run."""
    cut: list[Forward] = []
    applies: list[Callable[[EngineCore, StepDraft], None]] = []
    for each in passes:
        if isinstance(each, Run):
            cut.append((tuple(applies), each))
            applies = []
        else:
            applies.append(each.apply)
    if applies or not cut:
        raise ValueError("an engine's passes must end with a Run")
    return cut


class Candidate:
    """A waiting request under test, with what the tests before have found out."""

    __slots__ = ("draft", "hit", "request", "tokens")

    def __init__(self, request: Request, draft: StepDraft) -> None:
        self.request = request
        self.draft = draft
        self.hit: Hit = NO_HIT
        self.tokens = 0
        """Granted for the first chunk."""


Test = Callable[["EngineCore", Candidate], Decision]
"""One condition for getting in. Their order is the engine's: what is found out by one is there for the next."""


def budget_is_open(core: EngineCore, candidate: Candidate) -> Decision:
    return ADMIT if candidate.draft.meter.open() else NO_WORK


def slot_is_free(core: EngineCore, candidate: Candidate) -> Decision:
    return ADMIT if len(core.running) < core.spec.max_running else NO_SLOT


def match_prefix(core: EngineCore, candidate: Candidate) -> Decision:
    candidate.hit = core.store.match(candidate.request)
    return ADMIT


def grant_chunk(core: EngineCore, candidate: Candidate) -> Decision:
    """Only what must be computed is asked for: cached tokens cost no budget (case B10)."""
    context = candidate.hit.blocks * core.block_tokens
    want = candidate.request.known_tokens - context
    tokens = candidate.draft.meter.grant(want, context, decode=False, admitting=True)
    if not tokens:
        return NO_CHUNK
    candidate.tokens = tokens
    return ADMIT


def blocks_are_there(core: EngineCore, candidate: Candidate) -> Decision:
    computed = candidate.hit.blocks * core.block_tokens + candidate.tokens
    decision = candidate.draft.account.decide(core, candidate.request, candidate.hit, core.blocks(computed))
    if decision.blocker is Blocker.BLOCKS:
        candidate.draft.refused.append(candidate.request)
    return decision


class Admit:
    """Let waiting requests in while they pass every test.

    `skip_misfits`: go on behind one that does not fit instead of stopping (head-of-line blocking), looking at no more
    than `max_scan`. `whole_prompt`: take blocks for all known tokens at once, not only for the first chunk.
    `only_when_empty`: not while anything runs. Nobody is let in by a step that has preempted.
    """

    def __init__(
        self,
        *tests: Test,
        skip_misfits: bool = False,
        max_scan: int = 1000,
        whole_prompt: bool = False,
        only_when_empty: bool = False,
    ) -> None:
        self.tests = tests
        self.skip_misfits = skip_misfits
        self.max_scan = max_scan
        self.whole_prompt = whole_prompt
        self.only_when_empty = only_when_empty

    def apply(self, core: EngineCore, draft: StepDraft) -> None:
        if not core.waiting:
            return
        if draft.preempted:
            draft.deferred = HAS_PREEMPTED
        elif self.only_when_empty and core.running:
            draft.deferred = BATCH_RUNS
        elif self.skip_misfits:
            for _, request in zip(range(self.max_scan), list(core.waiting), strict=False):
                self._consider(core, draft, request)
        else:
            while core.waiting and self._consider(core, draft, core.waiting.first()):
                pass

    def _consider(self, core: EngineCore, draft: StepDraft, request: Request) -> bool:
        """Admit or reject it, or note why it waits. True if the scan may go on behind it."""
        candidate = Candidate(request, draft)
        for test in self.tests:
            decision = test(core, candidate)
            if decision is ADMIT:
                continue
            if decision.verdict is Verdict.REJECT:
                core.reject(draft, request, decision)
                return True
            if decision.verdict is Verdict.DEFER:
                draft.deferred = draft.deferred or decision
                return False
        hit, tokens = candidate.hit, candidate.tokens
        context = hit.blocks * core.block_tokens
        draft.meter.spend(tokens, context, decode=False)
        upto = request.known_tokens if self.whole_prompt else context + tokens
        core.admit(draft, request, hit, tokens, core.blocks(upto))
        return True

    def steady_steps(self, core: EngineCore, plan: BatchPlan) -> int:
        """A blocked head stays blocked: slots and budget stand still, free blocks only fall."""
        if not core.waiting:
            return FOREVER
        return core.spec.admission.steady_steps(core, plan)

    def ignores(self, core: EngineCore, arrived: Request) -> Decision | None:
        """Behind a blocked head nobody is looked at; with slots full or a guard up, not even a new head."""
        if self.only_when_empty and core.running:
            return BATCH_RUNS
        if len(core.running) >= core.spec.max_running:
            return NO_SLOT
        if self.skip_misfits or core.waiting.first() is arrived or core.spec.budget.counts_queue:
            return None
        return BEHIND
