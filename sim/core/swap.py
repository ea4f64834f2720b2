"""The pass that brings swapped requests back from the host."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sim.core.admit import Guard, nothing_preempted
from sim.core.cohort import FOREVER
from sim.core.plan import ADMIT, StepDraft
from sim.kv.store import NO_HIT

if TYPE_CHECKING:
    from sim.core.drafting import Drafting
    from sim.core.plan import BatchPlan
    from sim.core.request import Request


class SwapIn:
    """Swapped requests come back while their blocks fit, first out first in, and go on in the same step.

    `to_front`: they stand before everybody else in the running list then, instead of behind.
    """

    def __init__(self, *, guards: Iterable[Guard] = (nothing_preempted,), to_front: bool = False) -> None:
        self.guards = tuple(guards)
        self.to_front = to_front

    def apply(self, core: Drafting, draft: StepDraft) -> None:
        if not core.swapped or any(guard(core, draft) for guard in self.guards):
            return
        while core.swapped and self._bring_back(core, draft, core.swapped.first()):
            pass

    def _bring_back(self, core: Drafting, draft: StepDraft, request: Request) -> bool:
        """True if it runs again."""
        if len(core.running) >= core.spec.max_running or not draft.meter.has_left():
            return False
        decode, context = core.would_decode(request), request.computed
        want = 1 if decode else request.known_tokens - context
        tokens = draft.meter.grant(want, context, decode=decode, admitting=False)
        if not tokens:
            return False
        held = max(core.host.held_blocks(request), core.blocks(context + tokens))
        if draft.account.decide(core, request, NO_HIT, held) is not ADMIT:
            draft.refused.append(request)
            return False
        draft.meter.spend(tokens, context, decode=decode)
        core.swap_in(draft, request, to_front=self.to_front)
        blocks = core.blocks_to_add(request, tokens)
        if decode:
            core.schedule_decode(draft, request, blocks)
            core.tidy_decodes(draft)
        else:
            core.schedule_chunk(draft, request, tokens, blocks)
        return True

    def steady_steps(self, core: Drafting, plan: BatchPlan) -> int:
        """Who does not fit now fits less with every step: slots stand still, decodes take blocks."""
        return core.admission.steady_steps(core, plan) if core.swapped else FOREVER
