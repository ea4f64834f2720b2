"""The admission test of engines whose cache gives blocks back only when it is asked to, a piece at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.core.admit import Candidate, Test, ask_for_blocks
from sim.core.plan import ADMIT, Decision

if TYPE_CHECKING:
    from sim.core.drafting import Drafting


def _make_it_fit(core: Drafting, candidate: Candidate) -> Decision:
    """All that it knows must fit. What is cached for it is referenced before anything is reclaimed, else it might go.

    Refused, it holds nothing; what was reclaimed in vain stays gone (mini-runtime `engine.py`, admission).
    """
    request, hit, store = candidate.request, candidate.hit, core.store
    store.attach(request, hit)
    decision = ask_for_blocks(core, candidate)
    while decision is not ADMIT and candidate.held_blocks - hit.blocks > store.free_blocks and store.reclaim():
        decision = ask_for_blocks(core, candidate)
    candidate.attached = decision is ADMIT
    if not candidate.attached:
        store.release(request, hit.blocks, 0, returns=False)
        candidate.draft.refused.append(request)
    return decision


RECLAIM_UNTIL_IT_FITS = Test(_make_it_fit)
