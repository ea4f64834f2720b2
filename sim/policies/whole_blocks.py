"""A token budget that is given out in whole blocks (vLLM V0 with chunked prefill and prefix caching)."""

from __future__ import annotations

from sim.policies.budget import UNLIMITED, ListOrder, TokenMeter
from sim.policies.protocols import EngineView, Meter
from sim.policies.registry import BUDGET


class WholeBlockMeter(TokenMeter):
    """What is left of the budget counts in whole blocks only; with less than one nobody gets anything."""

    __slots__ = ("block_tokens",)

    def __init__(self, left: int, chunk_cap: int, chunked: bool, block_tokens: int) -> None:
        super().__init__(left, chunk_cap, chunked)
        self.block_tokens = block_tokens

    def copy(self) -> WholeBlockMeter:
        return WholeBlockMeter(self.left, self.chunk_cap, self.chunked, self.block_tokens)

    def has_left(self) -> bool:
        return self.left >= self.block_tokens

    def spend_decodes(self, requests: int, context_tokens: int) -> bool:
        return self.left - (requests - 1) >= self.block_tokens and super().spend_decodes(requests, context_tokens)

    def grant(self, want: int, context: int, *, decode: bool, admitting: bool) -> int | None:
        whole = self.left - self.left % self.block_tokens
        want = min(want, self.chunk_cap)
        return want if want <= whole else (None if admitting and not self.chunked else whole)


@BUDGET.register("whole-blocks")
class WholeBlocks(ListOrder):
    """As `list-order`, but what is left is rounded down to whole blocks before anybody is given of it (vLLM V0).

    A decode that finds less than a block left gets nothing either. Source: vLLM 0.6.6.post1
    `Scheduler._chunk_new_tokens_to_schedule`.
    """

    def __init__(self, max_tokens: int = UNLIMITED, chunk_cap: int = 0) -> None:
        super().__init__(max_tokens, chunk_cap)

    def open(self, engine: EngineView) -> Meter:
        cap = self._cap(engine) if self.chunk_cap else UNLIMITED
        return WholeBlockMeter(self.max_tokens, cap, self.chunked, engine.block_tokens)
