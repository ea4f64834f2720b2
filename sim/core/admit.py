"""The pass that lets waiting requests in, with the tests that it puts them to and the guards before the scan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING

from sim.core.cohort import FOREVER
from sim.core.plan import ADMIT, Blocker, Decision, StepDraft, Verdict, defer
from sim.kv.store import NO_HIT, Hit

if TYPE_CHECKING:
    from sim.core.drafting import Drafting
    from sim.core.plan import BatchPlan
    from sim.core.request import Request

NO_WORK = defer(Blocker.WORK, "step budget used up")
NO_SLOT = defer(Blocker.SLOTS, "no sequence slot")
NO_BLOCKS = defer(Blocker.BLOCKS, "not enough free blocks")
NO_CHUNK = defer(Blocker.WORK, "prompt does not fit the step budget")
HAS_PREEMPTED = defer(Blocker.BLOCKS, "the step has preempted")
BATCH_RUNS = defer(Blocker.POLICY, "the batch before is still running")
OTHERS_ARE_SWAPPED = defer(Blocker.BLOCKS, "swapped requests come first")
LATCHED = defer(Blocker.POLICY, "batch was full and nobody has left since")
BEHIND = defer(Blocker.POLICY, "behind a blocked request")


# -- guards: is there a scan at all?

Guard = Callable[["Drafting", StepDraft], Decision | None]
"""Why nobody is looked at; None if there is a scan. Holds on as long as nobody leaves or arrives."""


def nothing_preempted(core: Drafting, draft: StepDraft) -> Decision | None:
    return HAS_PREEMPTED if draft.preempted else None


def nothing_runs(core: Drafting, draft: StepDraft) -> Decision | None:
    return BATCH_RUNS if core.running else None


def nothing_swapped(core: Drafting, draft: StepDraft) -> Decision | None:
    return OTHERS_ARE_SWAPPED if core.swapped else None


def a_slot_is_free(core: Drafting, draft: StepDraft) -> Decision | None:
    return NO_SLOT if len(core.running) >= core.spec.max_running else None


def not_latched(core: Drafting, draft: StepDraft) -> Decision | None:
    """With nobody decoding the latch holds nobody back (SGLang 0.5.23 `_get_new_batch_prefill_raw`)."""
    return LATCHED if core.latched and core.cohort.size else None


# -- tests: may this one start?


class Candidate:
    """A waiting request under test, with what the tests before have found out."""

    __slots__ = ("agreed", "attached", "draft", "held_blocks", "hit", "request", "tokens", "whole_prompt")

    def __init__(self, request: Request, draft: StepDraft, whole_prompt: bool = False) -> None:
        self.request = request
        self.draft = draft
        self.whole_prompt = whole_prompt
        """It takes blocks for all its known tokens at once, not only for the first chunk."""
        self.hit: Hit = NO_HIT
        self.agreed = False
        """The admission policy has said yes."""
        self.attached = False
        """A test has referenced the hit already."""
        self.tokens: int | None = None
        """Granted for the first chunk; None where admission only moves the request and a later pass gives it work."""
        self.held_blocks = 0
        """What it will hold, hits included."""


@dataclass(frozen=True, slots=True)
class Test:
    """One condition for getting in. Their order is the engine's: what one finds out is there for the next."""

    decide: Callable[[Drafting, Candidate], Decision]
    needs_candidate: bool = True
    """False: the answer is the same for everybody, so nobody need be looked at while it is no."""


def _budget_is_open(core: Drafting, candidate: Candidate) -> Decision:
    return ADMIT if candidate.draft.meter.has_left() else NO_WORK


def _slot_is_free(core: Drafting, candidate: Candidate) -> Decision:
    return ADMIT if len(core.running) < core.spec.max_running else NO_SLOT


def _match_prefix(core: Drafting, candidate: Candidate) -> Decision:
    candidate.hit = core.store.match(candidate.request)
    return ADMIT


def _grant_chunk(core: Drafting, candidate: Candidate) -> Decision:
    """Only what must be computed is asked for: cached tokens cost no budget (case B10)."""
    request, context = candidate.request, candidate.hit.tokens
    tokens = candidate.draft.meter.grant(request.known_tokens - context, context, decode=False, admitting=True)
    if not tokens:
        return NO_CHUNK
    candidate.tokens = tokens
    candidate.held_blocks = core.blocks(request.known_tokens if candidate.whole_prompt else context + tokens)
    return ADMIT


def ask_for_blocks(core: Drafting, candidate: Candidate) -> Decision:
    """What the admission policy says, and whether the blocks are really there: some policies go by promises alone.

    Where the first chunk is granted later, it is asked about all that the request knows.
    """
    request, hit = candidate.request, candidate.hit
    if not candidate.held_blocks:
        candidate.held_blocks = core.blocks(request.known_tokens)
    decision = candidate.draft.account.decide(core, request, hit, candidate.held_blocks)
    candidate.agreed = decision is ADMIT
    if decision is ADMIT and candidate.held_blocks - hit.blocks + hit.free_blocks > core.store.free_blocks:
        return NO_BLOCKS
    return decision


def _blocks_are_there(core: Drafting, candidate: Candidate) -> Decision:
    decision = ask_for_blocks(core, candidate)
    if decision.blocker is Blocker.BLOCKS:
        candidate.draft.refused.append(candidate.request)
    return decision


BUDGET_IS_OPEN = Test(_budget_is_open, needs_candidate=False)
SLOT_IS_FREE = Test(_slot_is_free, needs_candidate=False)
MATCH_PREFIX = Test(_match_prefix)
GRANT_CHUNK = Test(_grant_chunk)
BLOCKS_ARE_THERE = Test(_blocks_are_there)


# -- the pass


class Misfit(Enum):
    """What a request that does not get in means for the scan."""

    STOPS = "stops"
    """Head-of-line blocking."""
    IS_SKIPPED = "is skipped"
    IS_LOST = "is lost"
    """It is taken out of the queue and ends as failed; the scan stops."""


class Admit:
    """Let waiting requests in while they pass every test.

    `guards`: when there is no scan at all. `misfit`: what becomes of the scan at the first who does not get in; with
    skipping, it looks at no more than `max_scan`. `whole_prompt`: take blocks for all known tokens at once, not only
    for the first chunk. `latches`: a refusal while others run closes admission until somebody leaves.
    """

    def __init__(
        self,
        *tests: Test,
        guards: Iterable[Guard] = (nothing_preempted,),
        misfit: Misfit = Misfit.STOPS,
        max_scan: int = 1000,
        whole_prompt: bool = False,
        latches: bool = False,
    ) -> None:
        self.tests = tests
        self.guards = tuple(guards)
        self.misfit = misfit
        self.max_scan = max_scan
        self.whole_prompt = whole_prompt
        self.latches = latches
        self._scan = tuple(
            (test.decide, test.needs_candidate, any(each.needs_candidate for each in tests[: number + 1]))
            for number, test in enumerate(tests)
        )
        """Per test: what it decides, whether for this candidate alone, whether by then a candidate was looked at."""

    def apply(self, core: Drafting, draft: StepDraft) -> None:
        if not core.waiting:
            return
        for guard in self.guards:
            if (why := guard(core, draft)) is not None:
                draft.deferred = why
                return
        if core.order.sorts:
            core.waiting.arrange(core.order.arranged(core))
        if self.misfit is Misfit.IS_SKIPPED:
            for request in list(islice(core.waiting, self.max_scan)):
                self._consider(core, draft, request)
        else:
            while core.waiting:
                head = self._head(core, draft) if draft.preempted else core.waiting.first()
                if head is None or not self._consider(core, draft, head):
                    break
        if draft.deferred is not None:
            if self.latches and draft.deferred.blocker is not Blocker.WORK:
                core.latched = bool(core.running)
            if not core.waiting:
                draft.deferred = None  # the last one has used up what there was

    def _head(self, core: Drafting, draft: StepDraft) -> Request | None:
        """Who is looked at next: victims of this very step come back to the queue behind the scan (vLLM V0)."""
        return next((request for request in core.waiting if request not in draft.preempted), None)

    def _consider(self, core: Drafting, draft: StepDraft, request: Request) -> bool:
        """Admit or reject it, or note why it waits. True if the scan may go on behind it."""
        candidate = Candidate(request, draft, self.whole_prompt)
        for decide, for_candidate, looked_at in self._scan:
            decision = decide(core, candidate)
            if decision is ADMIT:
                continue
            if decision.verdict is Verdict.REJECT:
                core.reject(draft, request, decision)
                return True
            if self.misfit is Misfit.IS_LOST and for_candidate:
                core.lose(draft, request, decision)
            elif draft.deferred is None:
                draft.deferred = decision
                draft.blocked = request if looked_at else None
                draft.agreed = candidate.agreed
            return False
        return self._let_in(core, draft, candidate)

    def _let_in(self, core: Drafting, draft: StepDraft, candidate: Candidate) -> bool:
        request, hit, tokens = candidate.request, candidate.hit, candidate.tokens
        core.let_in(request, hit, attached=candidate.attached)
        new_blocks = candidate.held_blocks - hit.blocks
        if tokens is None:
            core.grow(draft, request, new_blocks, 0)
            return True
        draft.meter.spend(tokens, hit.tokens, decode=False)
        core.schedule_chunk(draft, request, tokens, new_blocks, admitted=True)
        if core.admission.charges:
            last = hit.tokens + tokens == request.known_tokens
            draft.account.charge(core, request, tokens, last=last)
            draft.deferred = draft.account.spent(core)
            return draft.deferred is None
        return True

    def steady_steps(self, core: Drafting, plan: BatchPlan) -> int:
        """Guards, slots and what decodes leave of the budget stand still; for the rest the policies speak."""
        draft = core.latest_draft
        if not core.waiting:
            return FOREVER
        if any(guard(core, draft) for guard in self.guards):
            return FOREVER if draft.blocked is None else 1  # a latch that has just fallen: then it is the reason
        steps = core.order.steady_steps(core, plan)
        if draft.blocked is None:
            return steps
        if not draft.agreed:
            return min(steps, core.admission.steady_steps(core, plan))
        # The policy's yes, given before another test said no, may turn into a no as blocks are taken.
        return min(steps, 1 + core.cohort.affordable_steps(0, FOREVER)) if core.admission.lasting_yes else 1

    def why_ignored(self, core: Drafting, arrived: Request, draft: StepDraft) -> Decision | None:
        """Why a request just queued changes nothing in the stretch that came of a draft; None if it must be looked at.

        Behind a blocked head nobody is looked at. A new head is not, if a test that is the same for everybody says no.
        """
        for guard in self.guards:
            if (why := guard(core, draft)) is not None:
                return why
        if self.latches:
            return None  # the latch may fall
        stays_behind = self.misfit is not Misfit.IS_SKIPPED and not core.order.sorts
        if stays_behind and core.waiting.first() is not arrived:
            return None if core.budget.counts_queue else BEHIND
        candidate = Candidate(arrived, draft, self.whole_prompt)
        for test in self.tests:
            if test.needs_candidate:
                return None
            decision = test.decide(core, candidate)
            if decision is not ADMIT:
                return decision
        return None
