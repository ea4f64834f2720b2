"""The pass that lets waiting requests in, and the tests that it puts them to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from sim.core.cohort import FOREVER
from sim.core.plan import ADMIT, Blocker, Decision, StepDraft, Verdict, defer
from sim.kv.store import NO_HIT, Hit

if TYPE_CHECKING:
    from sim.core.plan import BatchPlan
    from sim.core.request import Request
    from sim.core.state import EngineState

NO_WORK = defer(Blocker.WORK, "step budget used up")
NO_SLOT = defer(Blocker.SLOTS, "no sequence slot")
NO_CHUNK = defer(Blocker.WORK, "prompt does not fit the step budget")
HAS_PREEMPTED = defer(Blocker.BLOCKS, "the step has preempted")
BATCH_RUNS = defer(Blocker.POLICY, "the batch before is still running")
BEHIND = defer(Blocker.POLICY, "behind a blocked request")


class Candidate:
    """A waiting request under test, with what the tests before have found out."""

    __slots__ = ("draft", "held_blocks", "hit", "request", "tokens", "whole_prompt")

    def __init__(self, request: Request, draft: StepDraft, *, whole_prompt: bool) -> None:
        self.request = request
        self.draft = draft
        self.whole_prompt = whole_prompt
        """It takes blocks for all its known tokens at once, not only for the first chunk."""
        self.hit: Hit = NO_HIT
        self.tokens = 0
        """Granted for the first chunk."""
        self.held_blocks = 0
        """What it will hold, hits included."""


@dataclass(frozen=True, slots=True)
class Test:
    """One condition for getting in. Their order is the engine's: what one finds out is there for the next."""

    decide: Callable[[EngineState, Candidate], Decision]
    needs_candidate: bool = True
    """False: the answer is the same for everybody, so nobody need be looked at while it is no."""


def _budget_is_open(core: EngineState, candidate: Candidate) -> Decision:
    return ADMIT if candidate.draft.meter.has_left() else NO_WORK


def _slot_is_free(core: EngineState, candidate: Candidate) -> Decision:
    return ADMIT if len(core.running) < core.spec.max_running else NO_SLOT


def _match_prefix(core: EngineState, candidate: Candidate) -> Decision:
    candidate.hit = core.store.match(candidate.request)
    return ADMIT


def _grant_chunk(core: EngineState, candidate: Candidate) -> Decision:
    """Only what must be computed is asked for: cached tokens cost no budget (case B10)."""
    request, context = candidate.request, candidate.hit.blocks * core.block_tokens
    tokens = candidate.draft.meter.grant(request.known_tokens - context, context, decode=False, admitting=True)
    if not tokens:
        return NO_CHUNK
    candidate.tokens = tokens
    candidate.held_blocks = core.blocks(request.known_tokens if candidate.whole_prompt else context + tokens)
    return ADMIT


def _blocks_are_there(core: EngineState, candidate: Candidate) -> Decision:
    decision = candidate.draft.account.decide(core, candidate.request, candidate.hit, candidate.held_blocks)
    if decision.blocker is Blocker.BLOCKS:
        candidate.draft.refused.append(candidate.request)
    return decision


BUDGET_IS_OPEN = Test(_budget_is_open, needs_candidate=False)
SLOT_IS_FREE = Test(_slot_is_free, needs_candidate=False)
MATCH_PREFIX = Test(_match_prefix)
GRANT_CHUNK = Test(_grant_chunk)
BLOCKS_ARE_THERE = Test(_blocks_are_there)


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
        self._decide = tuple(test.decide for test in tests)

    def apply(self, core: EngineState, draft: StepDraft) -> None:
        if not core.waiting:
            return
        if draft.preempted:
            draft.deferred = HAS_PREEMPTED
        elif self.only_when_empty and core.running:
            draft.deferred = BATCH_RUNS
        elif self.skip_misfits:
            for request in list(islice(core.waiting, self.max_scan)):
                self._consider(core, draft, request)
        else:
            while core.waiting and self._consider(core, draft, core.waiting.first()):
                pass

    def _consider(self, core: EngineState, draft: StepDraft, request: Request) -> bool:
        """Admit or reject it, or note why it waits. True if the scan may go on behind it."""
        candidate = Candidate(request, draft, whole_prompt=self.whole_prompt)
        for decide in self._decide:
            decision = decide(core, candidate)
            if decision is ADMIT:
                continue
            if decision.verdict is Verdict.REJECT:
                core.reject(draft, request, decision)
                return True
            draft.deferred = draft.deferred or decision
            return False
        draft.meter.spend(candidate.tokens, candidate.hit.blocks * core.block_tokens, decode=False)
        core.admit(draft, request, candidate.hit, candidate.tokens, candidate.held_blocks)
        return True

    def steady_steps(self, core: EngineState, plan: BatchPlan) -> int:
        """A blocked head stays blocked: slots and what decodes leave of the budget stand still, free blocks fall."""
        if not core.waiting:
            return FOREVER
        return core.spec.admission.steady_steps(core, plan)

    def why_ignored(self, core: EngineState, arrived: Request, draft: StepDraft) -> Decision | None:
        """Why a request just queued changes nothing in the stretch that came of a draft; None if it must be looked at.

        Behind a blocked head nobody is looked at. A new head is not, if a test that is the same for everybody says no.
        """
        if self.only_when_empty and core.running:
            return BATCH_RUNS
        if not self.skip_misfits and core.waiting.first() is not arrived:
            return None if core.spec.budget.counts_queue else BEHIND
        candidate = Candidate(arrived, draft, whole_prompt=self.whole_prompt)
        for test in self.tests:
            if test.needs_candidate:
                return None
            decision = test.decide(core, candidate)
            if decision is not ADMIT:
                return decision
        return None
