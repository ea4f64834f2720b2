"""Admission tests of an engine that gives a request the blocks of its whole prompt at once (vLLM V0).

They come before the others: who can never start ends also in a step that has no slot or budget left.
Source: vLLM 0.6.6.post1 `Scheduler._schedule_prefills`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sim.core.admit import Candidate, Test
from sim.core.plan import ADMIT, Decision, Verdict, reject

if TYPE_CHECKING:
    from sim.core.drafting import Drafting


def no_longer_than(limit: int) -> Test:
    """Who knows more tokens than a step may ever compute at once is refused."""

    def decide(core: Drafting, candidate: Candidate) -> Decision:
        known = candidate.request.known_tokens
        return ADMIT if known <= limit else reject("prompt > prompt limit", f"{known} tokens > {limit}")

    return Test(decide)


def _match_whole(core: Drafting, candidate: Candidate) -> Decision:
    """Every cached block is taken; if that is all of the prompt, its last token is computed again."""
    request, store = candidate.request, core.store
    hit = store.match(request, most_blocks=request.known_tokens // store.block_tokens)
    candidate.hit = replace(hit, tokens=request.known_tokens - 1) if hit.tokens == request.known_tokens else hit
    return ADMIT


def _can_ever_start(core: Drafting, candidate: Candidate) -> Decision:
    request = candidate.request
    decision = candidate.draft.account.decide(core, request, candidate.hit, core.blocks(request.known_tokens))
    return decision if decision.verdict is Verdict.REJECT else ADMIT


MATCH_WHOLE_PROMPT = Test(_match_whole)
CAN_EVER_START = Test(_can_ever_start)
