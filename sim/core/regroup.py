"""The pass that puts the running list into the order in which vLLM V0 rebuilds it after a chunked step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.core.cohort import FOREVER
from sim.core.plan import StepDraft

if TYPE_CHECKING:
    from sim.core.drafting import Drafting
    from sim.core.plan import BatchPlan
    from sim.core.request import Request

UNSERVED, SWAPPED_IN, DECODES, PREFILLS, NEW = range(5)


class Regroup:
    """Whom the step's budget did not reach, who came back from the host, decodes, prefills, who is new: in this order.

    Each group keeps its own. Source: vLLM 0.6.6.post1 `Scheduler._schedule_chunked_prefill`, "Update new running
    requests".
    """

    def apply(self, core: Drafting, draft: StepDraft) -> None:
        all_served = draft.decodes is None and len(draft.items) == len(core.prefilling)
        if all_served and core.decodes_come_first and not draft.swapped_in:
            return
        items = {item.request: item for item in draft.items}
        came_back = set(draft.swapped_in)

        def group(request: Request) -> tuple[int, bool]:
            item = items.get(request)
            if item is not None and item.admitted:
                return NEW, True
            if request in came_back:
                return SWAPPED_IN, item is not None
            if item is not None:
                return PREFILLS, True
            served = request.decoding and (draft.all_decodes or request in (draft.decodes or ()))
            return (DECODES if served else UNSERVED), False

        order = sorted(core.running, key=group)
        if order != [*core.running]:
            core.rearrange(order)

    def steady_steps(self, core: Drafting, plan: BatchPlan) -> int:
        """A step in which everybody decodes leaves the order as it is."""
        return FOREVER
