"""A right admission policy, and policies each of which breaks one rule; `test_testing.py` has them caught."""

from __future__ import annotations

from typing import Any, ClassVar

from sim.core.cohort import FOREVER
from sim.core.plan import ADMIT, Blocker, PreemptionMode, defer, reject
from sim.core.queue import FifoQueue, SortedQueue
from sim.policies.budget import ListOrder, TokenMeter
from sim.policies.protocols import AdmissionPolicy, OrderPolicy, PreemptionPolicy

NO_BLOCKS = defer(Blocker.BLOCKS, "no blocks")
TIRED = defer(Blocker.POLICY, "tired")


class Plain(AdmissionPolicy):
    """Right: what fits gets in."""

    def __init__(self, margin: int = 0) -> None:
        self.margin = margin

    def decide(self, engine: Any, request: Any, hit: Any, chunk_blocks: int) -> Any:
        need = chunk_blocks - hit.blocks + hit.free_blocks
        margin = self.margin if engine.running else 0
        return ADMIT if need + margin <= engine.store.free_blocks else NO_BLOCKS


class SaysNone(Plain):
    def decide(self, *about: Any) -> Any:
        return None


class AdmitsAll(Plain):
    def decide(self, *about: Any) -> Any:
        return ADMIT


class GivesNoReason(Plain):
    def decide(self, *about: Any) -> Any:
        return defer(Blocker.POLICY, "")


class Raises(Plain):
    def decide(self, *about: Any) -> Any:
        raise KeyError("oops")


class Mutates(Plain):
    def decide(self, engine: Any, request: Any, *about: Any) -> Any:
        request.priority += 1
        return super().decide(engine, request, *about)


class MutatesOthers(Plain):
    def decide(self, engine: Any, request: Any, *about: Any) -> Any:
        for other in engine.waiting:
            other.priority = 7
        return super().decide(engine, request, *about)


class Counts(Plain):
    """Its answer depends on how often it was asked."""

    asked = 0

    def decide(self, *about: Any) -> Any:
        self.asked += 1
        return TIRED if self.asked % 3 == 0 else super().decide(*about)


class Reserves(Plain):
    def reservation(self, engine: Any, request: Any) -> Any:
        return 0.5


class KeepsInTheClass(Plain):
    ended: ClassVar[list[str]] = []

    def observe(self, event: Any) -> None:
        self.ended.append(type(event).__name__)


class RemembersInTheClass(KeepsInTheClass):
    def decide(self, *about: Any) -> Any:
        return TIRED if len(self.ended) % 7 == 3 else super().decide(*about)


class SeesTheTruth(Plain):
    """Reads the core's own knowledge of where an answer ends."""

    def decide(self, engine: Any, request: Any, *about: Any) -> Any:
        if engine._endings._stop_after[request] > 10:
            return reject("too long", "")
        return super().decide(engine, request, *about)


class PromisesTooMuch(Plain):
    """Its answer changes with the clock, and it says that it does not."""

    def decide(self, engine: Any, *about: Any) -> Any:
        return TIRED if engine.running and engine.now_ns // 7_000_000 % 2 else super().decide(engine, *about)

    def steady_steps(self, engine: Any, plan: Any) -> int:
        return FOREVER


class LosesSomebody(OrderPolicy):
    sorts = True

    def queue(self) -> Any:
        return FifoQueue()

    def arranged(self, engine: Any) -> Any:
        return list(engine.waiting)[1:]


class ClaimsTooMuch(OrderPolicy):
    """Priority alone, and says that nobody starves."""

    prevents_starvation = True

    def queue(self) -> Any:
        return SortedQueue(lambda request: (request.priority, request.number))


class Greedy(ListOrder):
    """Grants more than is wanted."""

    def open(self, engine: Any) -> Any:
        class Meter(TokenMeter):
            def grant(self, want: int, context: int, **how: Any) -> Any:
                return want + 1

            def copy(self) -> Any:
                return Meter(self.left, self.chunk_cap, self.chunked)

        return Meter(self.max_tokens, 1 << 60, True)


class Negative(ListOrder):
    def open(self, engine: Any) -> Any:
        class Meter(TokenMeter):
            def grant(self, want: int, context: int, **how: Any) -> Any:
                return -1

        return Meter(self.max_tokens, 1 << 60, True)


class NotANumber(ListOrder):
    def open(self, engine: Any) -> Any:
        class Meter(TokenMeter):
            def grant(self, want: int, context: int, **how: Any) -> Any:
                return float("nan")

        return Meter(self.max_tokens, 1 << 60, True)


class OverTheLimit(ListOrder):
    """Says 16 and hands out 64."""

    def __init__(self) -> None:
        super().__init__(max_tokens=16)

    def open(self, engine: Any) -> Any:
        return TokenMeter(64, 1 << 60, True)


class KeepsRefunds(ListOrder):
    def __init__(self) -> None:
        super().__init__(max_tokens=16)

    def open(self, engine: Any) -> Any:
        class Meter(TokenMeter):
            def refund(self, tokens: int, context: int, **how: Any) -> None:
                pass

            def copy(self) -> Any:
                return Meter(self.left, self.chunk_cap, self.chunked)

        return Meter(self.max_tokens, 1 << 60, True)


class SharesItsCopy(KeepsRefunds):
    def open(self, engine: Any) -> Any:
        class Meter(TokenMeter):
            def copy(self) -> Any:
                return self

        return Meter(self.max_tokens, 1 << 60, True)


class PicksTheDead(PreemptionPolicy):
    """The first that ever gave way, whatever has become of it."""

    def victim(self, engine: Any, request: Any, draft: Any) -> Any:
        return next(iter(engine.waiting), request)


class NoMode(PreemptionPolicy):
    def victim(self, engine: Any, request: Any, draft: Any) -> Any:
        return request

    def mode(self, engine: Any, victim: Any) -> Any:
        return "recompute"


class EndsAll(NoMode):
    """Right, if hard."""

    def mode(self, engine: Any, victim: Any) -> Any:
        return PreemptionMode.FAIL


class RanksNothing:
    def rank(self, span: Any) -> Any:
        return (float("nan"),)
