"""Equal shares: all unfinished prompts get on at once, instead of one after the other."""

from __future__ import annotations

from itertools import islice

from sim.core.cohort import FOREVER
from sim.core.plan import BatchPlan
from sim.policies.budget import UNLIMITED, TokenMeter
from sim.policies.protocols import BudgetPolicy, EngineView, Meter
from sim.policies.registry import BUDGET


class ShareMeter(TokenMeter):
    """What is left, and how much of it each prompt may have: settled when the first one asks."""

    __slots__ = ("engine", "extra", "level", "most_sharers", "unit")

    def __init__(self, engine: EngineView, left: int, unit: int, most_sharers: int) -> None:
        super().__init__(left, UNLIMITED, chunked=True)
        self.engine = engine
        self.unit = unit
        self.most_sharers = most_sharers
        self.level = -1
        """Whole units that everybody may have, in tokens; -1 = not settled yet."""
        self.extra = 0
        """Left over by them, for those who ask first."""

    def copy(self) -> ShareMeter:
        other = ShareMeter(self.engine, self.left, self.unit, self.most_sharers)
        other.level, other.extra = self.level, self.extra
        return other

    def grant(self, want: int, context: int, *, decode: bool, admitting: bool) -> int | None:
        if decode:
            return min(want, self.left)
        if self.level < 0:
            self._settle()
        return min(want, self.level + min(self.unit, self.extra), self.left)

    def spend(self, tokens: int, context: int, *, decode: bool) -> None:
        self.left -= tokens
        if not decode and self.level >= 0:
            self.extra -= max(0, tokens - self.level)

    def refund(self, tokens: int, context: int, *, decode: bool) -> None:
        self.left += tokens
        if not decode and self.level >= 0:
            self.extra += max(0, tokens - self.level)

    def _settle(self) -> None:
        """Round robin, a unit each, until what is left does not make a round: prompts that are done drop out."""
        wants = sorted(
            [request.uncomputed_tokens for request in self.engine.prefilling]
            + candidates(self.engine, self.most_sharers - len(self.engine.prefilling))
        )
        left, level = self.left, 0
        while wants and sum(min(want, self.unit) for want in wants) <= left:
            rounds = max(1, min(left // len(wants), wants[0]) // self.unit)
            level += rounds * self.unit
            left -= sum(min(want, rounds * self.unit) for want in wants)
            wants = [want - rounds * self.unit for want in wants if want > rounds * self.unit]
        self.level, self.extra = (level if wants else UNLIMITED), left


def candidates(engine: EngineView, most: int) -> list[int]:
    """Tokens of the waiting requests that can probably start now: slots, and blocks for all that they know."""
    free = min(engine.store.free_blocks, engine.store.total_blocks - engine.reserved_blocks)
    wants = []
    for request in islice(engine.waiting, max(0, min(most, engine.free_slots))):
        free -= engine.blocks(request.known_tokens)
        if free < 0:
            break
        wants.append(request.known_tokens)
    return wants


@BUDGET.register("equal-share")
class EqualShare(BudgetPolicy):
    """Decodes first; the rest in equal shares to all unfinished prompts, new ones included: short ones overtake long.

    `max_tokens`: tokens per step. `unit_tokens`: shares are whole units, handed out round robin (the last may be cut).
    `max_sharers`: prompts that share a step at most. New prompts count if slots and blocks for them are free; the share
    of one that cannot start for another reason is lost to the step. (TensorRT-LLM EQUAL_PROGRESS.) The other way, one
    prompt after the other, is `decode-first`.
    """

    serve = "decode_first"
    counts_queue = True

    def __init__(self, max_tokens: int = 8192, unit_tokens: int = 64, max_sharers: int = 64) -> None:
        for name, value in {"max_tokens": max_tokens, "unit_tokens": unit_tokens, "max_sharers": max_sharers}.items():
            if value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")
        self.max_tokens = self.limit = max_tokens
        self.unit_tokens = unit_tokens
        self.max_sharers = max_sharers

    def open(self, engine: EngineView) -> Meter:
        return ShareMeter(engine, self.max_tokens, self.unit_tokens, self.max_sharers)

    def steady_steps(self, engine: EngineView, plan: BatchPlan) -> int:
        """Decodes are no more than before, and a head that was refused its blocks would ask for no fewer."""
        return FOREVER
