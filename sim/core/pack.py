"""The pass that gives work to those whom `Select` has found to have room (`sim.core.select`).

TensorRT-LLM's micro-batch scheduler (`pyexecutor/scheduler/scheduler.py`). Blocks are taken, and requests let in, only
for work: who was selected and gets no tokens stays where he is.
"""

from __future__ import annotations

from heapq import merge
from typing import TYPE_CHECKING

from sim.core.admit import NO_CHUNK
from sim.core.cohort import FOREVER
from sim.core.select import lacking_blocks
from sim.core.split import Shares, Split, whole
from sim.kv.store import NO_HIT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sim.core.drafting import Drafting
    from sim.core.plan import BatchPlan, StepDraft
    from sim.core.request import Request


class Pack:
    """Give work to decodes and to selected prompts, up to the step's budget and to `max_batch` requests.

    In the order that the budget serves: decodes first, or as they stand in the list. `split` says how prompts share the
    budget; if they may be cut, decodes take theirs before, and prompts that are not finished stand first in the batch.
    If not, the first that does not fit ends the scan, and decodes behind it miss the step. Usually everything fits, and
    then the decodes are one sum. The first chunk of a prompt takes the blocks of all of it.
    """

    def __init__(self, *, max_batch: int = FOREVER, split: Split = whole) -> None:
        self.max_batch = max_batch
        self.split = split

    def apply(self, core: Drafting, draft: StepDraft) -> None:
        if not core.cohort.size and not draft.selected:
            return
        if core.learners or not self._all_at_once(core, draft):
            self._walk(core, draft)
        left = next((request for request in draft.selected if request not in core.running), None)
        if left is not None:
            draft.deferred, draft.blocked = NO_CHUNK, left

    def _all_at_once(self, core: Drafting, draft: StepDraft) -> bool:
        """Schedule all decodes, and prompts, if that is what a walk would come to; else leave the draft as it was."""
        cohort, prompts = core.cohort, draft.selected
        if cohort.size + len(prompts) > self.max_batch or cohort.next_blocks() > core.store.free_blocks:
            return False
        before = draft.meter.copy()
        if cohort.size and not draft.meter.spend_decodes(cohort.size, cohort.context_tokens):
            return False
        shares = self.split(draft.meter, prompts)
        if cohort.size and self._decodes_may_wait(core, prompts, shares):
            draft.meter = before
            return False
        if cohort.size:
            core.schedule_decodes(draft)
        self._schedule(core, draft, shares)
        return True

    def _decodes_may_wait(self, core: Drafting, prompts: list[Request], shares: Shares) -> bool:
        """Whether a prompt that did not get all that it wants stands before a decode."""
        if core.budget.serve == "prefill_first":
            return sum(tokens for _, tokens in shares) < sum(request.uncomputed_tokens for request in prompts)
        if core.budget.serve == "decode_first" or self.split is not whole or len(shares) == len(prompts):
            return False
        return prompts[len(shares)].number < next(reversed(core.running)).number

    def _walk(self, core: Drafting, draft: StepDraft) -> None:
        """One by one: some decodes or prompts find no budget, no place in the batch, or no block."""
        draft.decodes, meter = set(), draft.meter
        shares: Shares = []
        uncut: list[Request] = []
        for request in self._in_order(core, draft):
            if len(draft.decodes) + len(shares) + len(uncut) >= self.max_batch:
                break
            if request.decoding:
                blocks = core.blocks_to_add(request, 1)
                if blocks > core.store.free_blocks:
                    draft.refused.append(request)
                    continue
                if not meter.grant(1, request.computed_tokens, decode=True, admitting=False):
                    break
                meter.spend(1, request.computed_tokens, decode=True)
                core.schedule_decode(draft, request, blocks)
            elif self.split is not whole and core.budget.serve != "prefill_first":
                uncut.append(request)
            else:
                share = self.split(meter, [request])
                if not share and self.split is whole:
                    break
                shares += share
        core.tidy_decodes(draft)
        self._schedule(core, draft, shares + self.split(meter, uncut))

    def _in_order(self, core: Drafting, draft: StepDraft) -> Iterable[Request]:
        decodes = [request for request in core.running if request.decoding]
        if core.budget.serve == "list":
            return merge(decodes, draft.selected, key=lambda request: request.number)
        return draft.selected + decodes if core.budget.serve == "prefill_first" else decodes + draft.selected

    def _schedule(self, core: Drafting, draft: StepDraft, shares: Shares) -> None:
        for request, tokens in sorted(shares, key=lambda share: share[1] == share[0].uncomputed_tokens):
            blocks, starts = lacking_blocks(core, request), request not in core.running
            if blocks > core.store.free_blocks:
                draft.refused.append(request)
                continue
            if starts:
                core.let_in(request, NO_HIT)
            core.schedule_chunk(draft, request, tokens, blocks, admitted=starts)

    def steady_steps(self, core: Drafting, plan: BatchPlan) -> int:
        """As long as the budget has room for all decodes: what they leave for prompts stands still with it."""
        return core.budget.steady_steps(core, plan)
