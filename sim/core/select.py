"""The pass that says who may take part in a step, by slots and memory, before anybody is given work (`sim.core.pack`).

TensorRT-LLM's capacity scheduler (`pyexecutor/scheduler/scheduler.py`). It changes no queue but by preemption.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain, takewhile
from typing import TYPE_CHECKING

from sim.core.admit import BATCH_RUNS, BEHIND, HAS_PREEMPTED, NO_SLOT, OTHERS_ARE_SWAPPED, Candidate, Guard, Test
from sim.core.cohort import FOREVER
from sim.core.plan import ADMIT, Blocker, Decision, StepDraft, Verdict, defer

if TYPE_CHECKING:
    from sim.core.drafting import Drafting
    from sim.core.plan import BatchPlan
    from sim.core.request import Request

NO_ROOM = defer(Blocker.BLOCKS, "not enough free blocks")


def nothing_decodes(core: Drafting, draft: StepDraft) -> Decision | None:
    """For static batches: nobody starts, or goes on with his prompt, while somebody generates."""
    return BATCH_RUNS if core.cohort.size else None


def _nobody_is_swapped(core: Drafting, candidate: Candidate) -> Decision:
    return OTHERS_ARE_SWAPPED if core.swapped else ADMIT


NOBODY_IS_SWAPPED = Test(_nobody_is_swapped, needs_candidate=False)
"""For preemption policies that swap; a guard would keep prompts from going on, too."""


def _number(request: Request) -> int:
    return request.number


def lacking_blocks(core: Drafting, request: Request) -> int:
    """What a request in its prefill, or before it, takes with its next chunk: the blocks of all it knows."""
    return max(0, core.blocks(request.known_tokens) - request.held_blocks)


def _next_blocks(core: Drafting) -> int:
    """What everybody who runs takes in this step."""
    return core.cohort.next_blocks() + sum(lacking_blocks(core, request) for request in core.prefilling)


class Select:
    """Everybody who runs, and of those who wait, in order, as many as find a slot and their blocks.

    What one takes in this step is not there for the next. Where it does not suffice, the preemption policy may name a
    victim, but for who waits only one that arrived later; nobody from the victim's place on is looked at in this step.
    The first who does not fit, or does not pass the `tests`, ends the scan; these judge as if who was selected ran
    already. `guards`: when all prompts wait, begun ones too.
    """

    def __init__(self, *tests: Test, guards: Iterable[Guard] = ()) -> None:
        self.tests = tests
        self.guards = tuple(guards)

    def apply(self, core: Drafting, draft: StepDraft) -> None:
        end = self._make_room(core, draft)
        for guard in self.guards:
            if (why := guard(core, draft)) is not None:
                draft.deferred = why if core.waiting else None
                return
        chosen: list[Request] = []
        if core.waiting:
            if core.order.sorts:
                core.waiting.arrange(core.order.arranged(core))
            self._scan(core, draft, chosen, end)
        if draft.preempted and draft.deferred is None and core.waiting:
            draft.deferred = HAS_PREEMPTED
        draft.selected.extend(merge(core.prefilling, chosen, key=_number))

    def _make_room(self, core: Drafting, draft: StepDraft) -> int:
        """Preempt until everybody who is left can go on. Returns the first number that is out of this step."""
        end = FOREVER
        while core.running and _next_blocks(core) > core.store.free_blocks:
            last = next(reversed(core.running))
            draft.refused.append(last)
            victim = core.preemption.victim(core, last, draft)
            if victim is None:
                break
            core.preempt(draft, victim)
            end = min(end, victim.number)
        return end

    def _scan(self, core: Drafting, draft: StepDraft, chosen: list[Request], end: int) -> None:
        """Choose among those who wait. What is chosen counts as reserved until the scan is over."""
        ahead: Iterator[Request] = iter(core.waiting)
        taken, reserved, rejected = _next_blocks(core), 0, []
        while (request := next(ahead, None)) is not None and request.number < end:
            decision = self._decide(core, draft, request, len(chosen), taken)
            if decision is ADMIT:
                chosen.append(request)
                taken += lacking_blocks(core, request)
                reservation = core.admission.reservation(core, request)
                core.reserved_blocks += reservation
                reserved += reservation
                if core.admission.charges:
                    draft.account.charge(core, request, request.known_tokens, last=True)
                continue
            if decision.verdict is Verdict.REJECT:
                rejected.append((request, decision))
                continue
            victim = core.preemption.victim(core, request, draft) if core.running else None
            if victim is None or victim.number <= request.number:
                draft.deferred = decision
                draft.blocked = None if decision is NO_SLOT else request
                break
            end = victim.number
            ahead = chain([request], _before(end, ahead))
            taken -= _next_blocks(core)
            core.preempt(draft, victim, asker=request)
            taken += _next_blocks(core)
        core.reserved_blocks -= reserved
        for request, decision in rejected:
            core.reject(draft, request, decision)

    def _decide(self, core: Drafting, draft: StepDraft, request: Request, chosen: int, taken: int) -> Decision:
        """`chosen`: so many have been; `taken`: blocks that these and everybody who runs take."""
        if len(core.running) + chosen >= core.spec.max_running:
            return NO_SLOT
        if core.admission.charges and (spent := draft.account.spent(core)) is not None:
            return spent
        decision = self._judge(core, draft, request)
        if decision is ADMIT and taken + lacking_blocks(core, request) > core.store.free_blocks:
            draft.refused.append(request)
            return NO_ROOM
        return decision

    def _judge(self, core: Drafting, draft: StepDraft, request: Request) -> Decision:
        candidate = Candidate(request, draft, whole_prompt=True)
        candidate.held_blocks = lacking_blocks(core, request)
        return next((no for test in self.tests if (no := test.decide(core, candidate)) is not ADMIT), ADMIT)

    def steady_steps(self, core: Drafting, plan: BatchPlan) -> int:
        """For who was refused his blocks: decodes take as many as are less to be free; otherwise the policies speak.

        Who was selected and only lacks work stays so while his blocks are free beside those that decodes take, if the
        admission policy goes by reservations, which stand still meanwhile; else until a block is taken, if not now.
        """
        draft, steps = core.latest_draft, FOREVER
        if (draft.selected and not core.admission.lasting_yes) or (draft.blocked and not core.preemption.timeless):
            return 1
        if draft.selected and core.reserved_blocks:
            free = core.store.free_blocks - sum(lacking_blocks(core, request) for request in draft.selected)
            steps = 1 + core.cohort.affordable_steps(max(0, free), FOREVER)
        elif draft.selected:
            still = all(self._judge(core, draft, request) is ADMIT for request in draft.selected)
            steps = 1 + core.cohort.affordable_steps(0, FOREVER) if still else 1
        if draft.blocked is not None:
            steps = min(steps, core.admission.steady_steps(core, plan), core.order.steady_steps(core, plan))
        return steps

    def why_ignored(self, core: Drafting, arrived: Request, draft: StepDraft) -> Decision | None:
        """As `Admit.why_ignored`: behind somebody who lacks a slot or blocks nobody is looked at."""
        for guard in self.guards:
            if (why := guard(core, draft)) is not None:
                return why
        if draft.selected or core.order.sorts:
            return None
        if core.waiting.first() is not arrived:
            return BEHIND
        return NO_SLOT if len(core.running) >= core.spec.max_running else None


def _before(number: int, requests: Iterator[Request]) -> list[Request]:
    """Those up to a number, taken out of the queue's iterator before the queue changes."""
    return list(takewhile(lambda request: request.number < number, requests))
