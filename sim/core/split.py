"""How the prompts of a step share the tokens that decodes leave: whole, in turn, or side by side (pass `Pack`).

TensorRT-LLM's context chunking (`MicroBatchScheduler`, `set_ctx_requests_chunk_size`). All spend from the meter what
they share out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim.core.request import Request

if TYPE_CHECKING:
    from sim.policies.protocols import Meter

Shares = list[tuple[Request, int]]
"""Who computes how many tokens of his prompt; who computes none is not in it."""

Split = Callable[["Meter", Sequence[Request]], Shares]


def whole(meter: Meter, requests: Sequence[Request]) -> Shares:
    """All or nothing, and nothing for those behind the first who gets nothing."""
    shares: Shares = []
    for request in requests:
        want, context = request.uncomputed_tokens, request.computed
        if meter.grant(want, context, decode=False, admitting=True) != want:
            break
        meter.spend(want, context, decode=False)
        shares.append((request, want))
    return shares


@dataclass(frozen=True, slots=True)
class InTurn:
    """Each takes all that is left; a chunk that is cut is cut to whole units (FIRST_COME_FIRST_SERVED)."""

    unit_tokens: int

    def __call__(self, meter: Meter, requests: Sequence[Request]) -> Shares:
        shares: Shares = []
        for request in requests:
            want, context = request.uncomputed_tokens, request.computed
            tokens = meter.grant(want, context, decode=False, admitting=False) or 0
            if tokens < want:
                tokens -= tokens % self.unit_tokens
            if tokens:
                meter.spend(tokens, context, decode=False)
                shares.append((request, tokens))
        return shares


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Round by round a unit for each, as long as somebody's still fits (EQUAL_PROGRESS)."""

    unit_tokens: int

    def __call__(self, meter: Meter, requests: Sequence[Request]) -> Shares:
        tokens = dict.fromkeys(requests, 0)
        while sum(self._add_unit(meter, request, tokens) for request in requests):
            pass
        return [(request, share) for request, share in tokens.items() if share]

    def _add_unit(self, meter: Meter, request: Request, tokens: dict[Request, int]) -> int:
        """The tokens added; 0 if there were none to add, or the chunk that they would make does not fit."""
        had, context = tokens[request], request.computed
        more = min(self.unit_tokens, request.uncomputed_tokens - had)
        if not more:
            return 0
        if had:
            meter.refund(had, context, decode=False)
        if meter.grant(had + more, context, decode=False, admitting=False) != had + more:
            more = 0
        tokens[request] = had + more
        if had + more:
            meter.spend(had + more, context, decode=False)
        return more
