"""Budget: how the work of one step is shared out between decodes and prefill chunks."""

from __future__ import annotations

from typing import Protocol

from costmodel.work import EQUAL_WORK
from sim.core.cohort import FOREVER
from sim.core.plan import BatchPlan
from sim.policies.protocols import BudgetPolicy, EngineView, Meter
from sim.policies.registry import BUDGET

UNLIMITED = 1 << 60


class TokenMeter:
    """Every token weighs the same."""

    __slots__ = ("chunk_cap", "chunked", "left")

    def __init__(self, left: int, chunk_cap: int, chunked: bool) -> None:
        self.left = left
        self.chunk_cap = chunk_cap
        self.chunked = chunked

    def copy(self) -> TokenMeter:
        return TokenMeter(self.left, self.chunk_cap, self.chunked)

    def has_left(self) -> bool:
        return self.left > 0

    def spend_decodes(self, requests: int, context_tokens: int) -> bool:
        if requests > self.left:
            return False
        self.left -= requests
        return True

    def grant(self, want: int, context: int, *, decode: bool, admitting: bool) -> int | None:
        if want > self.chunk_cap:
            want = self.chunk_cap
        if want <= self.left:
            return want
        return None if admitting and not self.chunked else self.left

    def spend(self, tokens: int, context: int, *, decode: bool) -> None:
        self.left -= tokens

    def refund(self, tokens: int, context: int, *, decode: bool) -> None:
        self.left += tokens


@BUDGET.register("list-order")
class ListOrder(BudgetPolicy):
    """Whoever stands first in the running list is served first: decodes have no privilege (vLLM V1).

    `max_tokens`: tokens per step (vLLM max_num_batched_tokens). `chunk_cap`: the most of one request in a step while
    others are there, 0 = no cap (vLLM long_prefill_token_threshold); `adaptive_cap` raises it to an equal share.
    `chunked`: a prompt may be cut to what is left; else it waits until it fits.
    """

    serve = "list"

    def __init__(
        self,
        max_tokens: int = UNLIMITED,
        chunk_cap: int = 0,
        adaptive_cap: bool = False,
        chunked: bool = True,
    ) -> None:
        if max_tokens < 1:
            raise ValueError(f"max_tokens must be >= 1, got {max_tokens}")
        if chunk_cap < 0:
            raise ValueError(f"chunk_cap must be >= 0 (0 = no cap), got {chunk_cap}")
        self.max_tokens = self.limit = max_tokens
        self.chunk_cap = chunk_cap
        self.adaptive_cap = adaptive_cap
        self.chunked = chunked
        self.counts_queue = chunk_cap > 0 and adaptive_cap

    def open(self, engine: EngineView) -> Meter:
        return TokenMeter(self.max_tokens, self._cap(engine) if self.chunk_cap else UNLIMITED, self.chunked)

    def _cap(self, engine: EngineView) -> int:
        sharers = len(engine.running) + len(engine.waiting)
        if sharers <= 1:
            return UNLIMITED
        return max(self.chunk_cap, self.max_tokens // sharers) if self.adaptive_cap else self.chunk_cap

    def steady_steps(self, engine: EngineView, plan: BatchPlan) -> int:
        return FOREVER


@BUDGET.register("decode-first")
class DecodeFirst(ListOrder):
    """Decodes first, then unfinished prefills, then new requests: keeps TPOT, can starve TTFT (convention N3)."""

    serve = "decode_first"


@BUDGET.register("prefill-first")
class PrefillFirst(ListOrder):
    """Unfinished and new prompts take what they can before any decode gets a token: good TTFT, long gaps (case A7)."""

    serve = "prefill_first"


class KindMeter:
    """Separate limits for decodes, for prefill tokens, for one prefill chunk and for all together."""

    __slots__ = ("chunk_cap", "decodes_left", "prefill_left", "total_left")

    def __init__(self, total: int, decodes: int, prefill: int, chunk_cap: int) -> None:
        self.total_left = total
        self.decodes_left = decodes
        self.prefill_left = prefill
        self.chunk_cap = chunk_cap

    def copy(self) -> KindMeter:
        return KindMeter(self.total_left, self.decodes_left, self.prefill_left, self.chunk_cap)

    def has_left(self) -> bool:
        return self.total_left > 0 and (self.decodes_left > 0 or self.prefill_left > 0)

    def spend_decodes(self, requests: int, context_tokens: int) -> bool:
        if requests > min(self.decodes_left, self.total_left):
            return False
        self.decodes_left -= requests
        self.total_left -= requests
        return True

    def grant(self, want: int, context: int, *, decode: bool, admitting: bool) -> int | None:
        left = min(self.decodes_left if decode else self.prefill_left, self.total_left)
        if left <= 0:
            return None  # not even a chunk of nothing, for a prompt that was cached whole
        return min(want, left) if decode else min(want, self.chunk_cap, left)

    def spend(self, tokens: int, context: int, *, decode: bool) -> None:
        self.total_left -= tokens
        if decode:
            self.decodes_left -= tokens
        else:
            self.prefill_left -= tokens

    def refund(self, tokens: int, context: int, *, decode: bool) -> None:
        self.spend(-tokens, context, decode=decode)


@BUDGET.register("per-kind")
class PerKind(BudgetPolicy):
    """Limits per kind of work beside the total: a per-step prefill cap bounds what a prompt does to everybody's TPOT.

    `prefill_min_tokens`: kept from the decodes, so that prompts get on even when decodes could use up the budget.
    """

    serve = "decode_first"
    counts_queue = False

    def __init__(
        self,
        max_tokens: int = UNLIMITED,
        max_decodes: int = UNLIMITED,
        max_prefill_tokens: int = UNLIMITED,
        max_chunk_tokens: int = UNLIMITED,
        prefill_min_tokens: int = 0,
    ) -> None:
        limits = {
            "max_tokens": max_tokens,
            "max_decodes": max_decodes,
            "max_prefill_tokens": max_prefill_tokens,
            "max_chunk_tokens": max_chunk_tokens,
        }
        for name, value in limits.items():
            if value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")
        if not 0 <= prefill_min_tokens < max_tokens:
            raise ValueError(f"prefill_min_tokens must be >= 0 and < max_tokens, got {prefill_min_tokens}")
        self.max_tokens = self.limit = max_tokens
        self.max_decodes = max_decodes
        self.max_prefill_tokens = max_prefill_tokens
        self.max_chunk_tokens = max_chunk_tokens
        self.prefill_min_tokens = prefill_min_tokens

    def open(self, engine: EngineView) -> Meter:
        decodes = self.max_decodes
        if self.prefill_min_tokens:
            decodes = min(decodes, self.max_tokens - self.prefill_min_tokens)
        return KindMeter(self.max_tokens, decodes, self.max_prefill_tokens, self.max_chunk_tokens)

    def steady_steps(self, engine: EngineView, plan: BatchPlan) -> int:
        return FOREVER


class Work(Protocol):
    """Token-work of shares of a step (DESIGN §1): a `costmodel.work.TokenWork`, calibrated or equal."""

    def decode_work(self, requests: int, context_tokens: int, /) -> float: ...
    def prefill_work(self, tokens: int, context: int, /) -> float: ...


class WorkMeter:
    """Counts token-work: a decode costs by its context, a prefill chunk by its tokens and attention pairs."""

    __slots__ = ("chunk_cap", "left", "work")

    def __init__(self, work: Work, left: float, chunk_cap: int) -> None:
        self.work = work
        self.left = left
        self.chunk_cap = chunk_cap

    def copy(self) -> WorkMeter:
        return WorkMeter(self.work, self.left, self.chunk_cap)

    def has_left(self) -> bool:
        return self.left > 0

    def spend_decodes(self, requests: int, context_tokens: int) -> bool:
        needed = self.work.decode_work(requests, context_tokens)
        if needed > self.left:
            return False
        self.left -= needed
        return True

    def grant(self, want: int, context: int, *, decode: bool, admitting: bool) -> int | None:
        if decode:
            return want if self.work.decode_work(want, context) <= self.left else 0
        return self._affordable(min(want, self.chunk_cap), context)

    def _affordable(self, want: int, context: int) -> int:
        """The most prefill tokens whose work is left: work grows with tokens, so bisect."""
        if self.work.prefill_work(want, context) <= self.left:
            return want
        low, high = 0, want - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.work.prefill_work(middle, context) <= self.left:
                low = middle
            else:
                high = middle - 1
        return low

    def spend(self, tokens: int, context: int, *, decode: bool) -> None:
        cost = self.work.decode_work if decode else self.work.prefill_work
        self.left -= cost(tokens, context)

    def refund(self, tokens: int, context: int, *, decode: bool) -> None:
        cost = self.work.decode_work if decode else self.work.prefill_work
        self.left += cost(tokens, context)


@BUDGET.register("token-work")
class TokenWork(BudgetPolicy):
    """A limit on the step's token-work: decodes first, each weighed by its context, then prefill chunks.

    `max_work`: in decode tokens at the profile's reference. `chunk_cap`: the most prompt tokens of one request in a
    step, 0 = no cap.
    `weights`: what a token weighs; equal by default, `calibrated` in a scenario means its cost model's.
    """

    serve = "decode_first"
    counts_queue = False

    def __init__(self, max_work: float, chunk_cap: int = 0, weights: Work = EQUAL_WORK) -> None:
        if not max_work > 0:
            raise ValueError(f"max_work must be > 0, got {max_work}")
        if chunk_cap < 0:
            raise ValueError(f"chunk_cap must be >= 0 (0 = no cap), got {chunk_cap}")
        self.max_work = self.limit = max_work
        self.chunk_cap = chunk_cap
        self.work = weights

    def open(self, engine: EngineView) -> Meter:
        return WorkMeter(self.work, self.max_work, self.chunk_cap or UNLIMITED)

    def steady_steps(self, engine: EngineView, plan: BatchPlan) -> int:
        """As long as the growing contexts fit: work is linear in the summed context.

        While somebody waits, what is left for him shrinks with every step: each may decide differently.
        """
        shape = plan.shape
        n, context = shape.decode_requests, shape.decode_context_tokens
        now = self.work.decode_work(n, context)
        per_step = self.work.decode_work(n, context + n) - now
        if per_step <= 0:
            return FOREVER
        return 1 if engine.waiting else max(1, int((self.max_work - now) / per_step))
