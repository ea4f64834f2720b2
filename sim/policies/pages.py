"""Budget: prefill tokens of a step in whole pages, in all and in chunks (SGLang)."""

from __future__ import annotations

from sim.core.cohort import FOREVER
from sim.core.plan import BatchPlan
from sim.policies.budget import UNLIMITED
from sim.policies.protocols import BudgetPolicy, EngineView, Meter
from sim.policies.registry import BUDGET


class PageMeter:
    """What is left of a step. Decodes cost nothing here; where they join prefills they were taken off at the start."""

    __slots__ = ("chunk_left", "chunked", "first", "input_left", "page")

    def __init__(self, input_left: int, chunk_left: int, page: int, *, chunked: bool, first: bool = True) -> None:
        self.input_left = input_left
        """`rem_input_tokens`."""
        self.chunk_left = chunk_left
        """`rem_chunk_tokens`."""
        self.page = page
        self.chunked = chunked
        self.first = first
        """Nobody has got anything yet."""

    def copy(self) -> PageMeter:
        return PageMeter(self.input_left, self.chunk_left, self.page, chunked=self.chunked, first=self.first)

    def has_left(self) -> bool:
        return self.input_left > 0 and self.chunk_left > 0

    def spend_decodes(self, requests: int, context_tokens: int) -> bool:
        return True

    def grant(self, want: int, context: int, *, decode: bool, admitting: bool) -> int | None:
        """Whoever goes on gets the rest of his prompt as far as it fits; a new one's cut is at the end of a page.

        Without chunks the first may be longer than the budget, and everybody else must leave some of it.
        """
        if decode:
            return want
        if not admitting:
            return min(want, self.chunk_left)
        paged = self._paged(want)
        if not self.chunked:
            return want if self.first or paged < self.input_left else None
        return want if paged <= self.chunk_left else self.chunk_left // self.page * self.page or None

    def spend(self, tokens: int, context: int, *, decode: bool) -> None:
        if not decode:
            self.first = False
            self._add(-self._paged(tokens))

    def refund(self, tokens: int, context: int, *, decode: bool) -> None:
        if not decode:
            self._add(self._paged(tokens))

    def _paged(self, tokens: int) -> int:
        return -(-tokens // self.page) * self.page

    def _add(self, tokens: int) -> None:
        self.input_left += tokens
        if self.chunked:
            self.chunk_left += tokens


@BUDGET.register("page-chunks")
class PageChunks(BudgetPolicy):
    """Prefills share a budget of whole pages; decodes are not limited.

    `max_input_tokens`: when they come to so many nobody else joins (SGLang max_prefill_tokens). `chunk_tokens`: at most
    so many in a step, and a prompt that does not fit is cut (SGLang chunked_prefill_size); 0: prompts are never cut.
    `mixed`: decodes that join prefills use up both. Source: SGLang 0.5.23 `schedule_policy.py` (`PrefillAdder`).
    """

    def __init__(self, max_input_tokens: int = UNLIMITED, chunk_tokens: int = 0, mixed: bool = False) -> None:
        if max_input_tokens < 1:
            raise ValueError(f"max_input_tokens must be >= 1, got {max_input_tokens}")
        if chunk_tokens < 0:
            raise ValueError(f"chunk_tokens must be >= 0 (0 = prompts are not cut), got {chunk_tokens}")
        self.max_input_tokens = max_input_tokens
        self.chunk_tokens = chunk_tokens
        self.mixed = mixed

    def open(self, engine: EngineView) -> Meter:
        decodes = engine.cohort.size if self.mixed else 0
        chunk = self.chunk_tokens - decodes if self.chunk_tokens else UNLIMITED
        return PageMeter(self.max_input_tokens - decodes, chunk, engine.block_tokens, chunked=bool(self.chunk_tokens))

    def steady_steps(self, engine: EngineView, plan: BatchPlan) -> int:
        return FOREVER
