"""The pass by which vLLM V0's priority policy lets an urgent request interrupt running ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.core.admit import BEHIND
from sim.core.cohort import FOREVER
from sim.core.plan import ADMIT, Decision, StepDraft
from sim.kv.store import NO_HIT

if TYPE_CHECKING:
    from sim.core.drafting import Drafting
    from sim.core.plan import BatchPlan
    from sim.core.request import Request


def urgency(request: Request) -> tuple[int, int]:
    """Smaller is more urgent (vLLM V0 `_get_priority`)."""
    return request.priority, request.arrival_ns


class YieldToUrgent:
    """Before a step in which nobody was let in, the least urgent running requests give way to the head of the queue.

    They do while they are less urgent than the head and it could still not start; it starts in the next step. Then
    both lists are sorted by urgency: here and only here, so that an urgent arrival stands at the end of the queue up
    to the next such step. Source: vLLM 0.6.6.post1 `Scheduler._schedule_priority_preemption`.
    """

    def apply(self, core: Drafting, draft: StepDraft) -> None:
        if core.waiting:
            draft.blocked = head = core.waiting.first()
            by_urgency = sorted(core.running, key=urgency)
            while by_urgency and urgency(by_urgency[-1]) > urgency(head) and not self._could_start(core, draft, head):
                core.preempt(draft, by_urgency.pop(), asker=head)
            core.waiting.arrange(sorted(core.waiting, key=urgency))
        order = sorted(core.running, key=urgency)
        if order != [*core.running]:
            core.rearrange(order)

    def _could_start(self, core: Drafting, draft: StepDraft, head: Request) -> bool:
        """Slot and blocks; a step in which nobody was let in has the budget for any prompt."""
        if len(core.running) >= core.spec.max_running:
            return False
        return draft.account.decide(core, head, NO_HIT, core.blocks(head.known_tokens)) is ADMIT

    def steady_steps(self, core: Drafting, plan: BatchPlan) -> int:
        """Nothing changes by itself unless the head is another now than the scan stopped at, or interrupts somebody."""
        if not core.waiting:
            return FOREVER
        head = core.waiting.first()
        interrupts = urgency(next(reversed(core.running))) > urgency(head)
        return 1 if interrupts or core.latest_draft.blocked is not head else FOREVER

    def why_ignored(self, core: Drafting, arrived: Request, draft: StepDraft) -> Decision | None:
        """Where sorting leaves it behind all others it changes nothing; else the next step makes another queue."""
        return BEHIND if all(urgency(other) <= urgency(arrived) for other in core.waiting) else None
