"""The pass that brings swapped requests back from the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING

from sim.core.admit import Admit, Guard, nothing_preempted, nothing_swapped
from sim.core.cohort import FOREVER
from sim.core.pack import Pack
from sim.core.passes import Advance, Pass
from sim.core.plan import ADMIT, StepDraft, Verdict
from sim.core.select import NOBODY_IS_SWAPPED, Select
from sim.kv.store import NO_HIT

if TYPE_CHECKING:
    from sim.core.drafting import Drafting
    from sim.core.plan import BatchPlan
    from sim.core.request import Request


class SwapIn:
    """Swapped requests come back while their blocks fit, first out first in, and go on in the same step.

    They stand behind everybody else in the running list then. Who can never fit ends.
    """

    def __init__(self, *, guards: Iterable[Guard] = (nothing_preempted,)) -> None:
        self.guards = tuple(guards)

    def apply(self, core: Drafting, draft: StepDraft) -> None:
        if not core.swapped or any(guard(core, draft) for guard in self.guards):
            return
        while core.swapped and self._bring_back(core, draft, core.swapped.first()):
            pass

    def _bring_back(self, core: Drafting, draft: StepDraft, request: Request) -> bool:
        """True if the scan may go on behind it."""
        if len(core.running) >= core.spec.max_running or not draft.meter.has_left():
            return False
        decode, context = core.would_decode(request), request.computed
        want = 1 if decode else request.known_tokens - context
        tokens = draft.meter.grant(want, context, decode=decode, admitting=False)
        if not tokens:
            return False
        held = max(core.host.held_blocks(request), core.blocks(context + tokens))
        decision = draft.account.decide(core, request, NO_HIT, held)
        if decision.verdict is Verdict.REJECT:
            core.strand(draft, request, decision)
            return True
        if decision is not ADMIT or held > core.store.free_blocks:
            draft.refused.append(request)
            return False
        draft.meter.spend(tokens, context, decode=decode)
        core.swap_in(draft, request)
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


def with_swap_in(passes: Sequence[Pass]) -> tuple[Pass, ...]:
    """Passes for a preemption policy that may swap: if nobody brings requests back, it happens behind the decodes.

    Nobody new is let in then while somebody is swapped, or small prompts would keep him out for ever.
    """
    if any(isinstance(each, SwapIn) for each in passes):
        return tuple(passes)
    out: list[Pass] = []
    for each in passes:
        if isinstance(each, Admit):
            admit = copy(each)
            admit.guards = (*each.guards, nothing_swapped)
            out.append(admit)
            continue
        if isinstance(each, Select):
            out.append(Select(NOBODY_IS_SWAPPED, *each.tests, guards=each.guards))
            continue
        out.append(each)
        if isinstance(each, Pack) or (isinstance(each, Advance) and each.decodes):
            out.append(SwapIn())
    return tuple(out)
