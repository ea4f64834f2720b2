"""A step budget in seconds: as much prefill as keeps the step within a target, by the cost model.

The target is a bound on the gap that decodes see (TBT). Sarathi-Serve chooses its chunk size from it once, for the
heaviest batch; here each step has its own.
"""

from __future__ import annotations

from costmodel.model import CostModel
from costmodel.shape import StepShape
from sim.core.cohort import FOREVER
from sim.core.plan import BatchPlan, Blocker
from sim.policies.budget import UNLIMITED
from sim.policies.deadline import nanoseconds
from sim.policies.protocols import BudgetPolicy, EngineView, Meter
from sim.policies.registry import BUDGET


class TimeMeter:
    """The step as granted so far; what may be added is what the cost model says."""

    __slots__ = ("chunks", "context_tokens", "cost", "decodes", "min_left", "target_ns", "tokens_left")

    def __init__(self, cost: CostModel, target_ns: int, tokens_left: int, min_left: int) -> None:
        self.cost = cost
        self.target_ns = target_ns
        self.tokens_left = tokens_left
        self.min_left = min_left
        """Prefill tokens to be granted whatever they take."""
        self.decodes = 0
        self.context_tokens = 0
        self.chunks: list[tuple[int, int]] = []

    def copy(self) -> TimeMeter:
        other = TimeMeter(self.cost, self.target_ns, self.tokens_left, self.min_left)
        other.decodes, other.context_tokens, other.chunks = self.decodes, self.context_tokens, self.chunks.copy()
        return other

    def has_left(self) -> bool:
        return self.tokens_left > 0

    def spend_decodes(self, requests: int, context_tokens: int) -> bool:
        if requests > self.tokens_left:
            return False
        self.tokens_left -= requests
        self.decodes += requests
        self.context_tokens += context_tokens
        return True

    def grant(self, want: int, context: int, *, decode: bool, admitting: bool) -> int | None:
        most = min(want, self.tokens_left)
        return most if decode else max(self._in_time(most, context), min(most, self.min_left))

    def _in_time(self, most: int, context: int) -> int:
        """The most tokens of a prompt with which the step is in time: time grows with tokens, so bisect."""
        if most == 0 or self._fits(most, context):
            return most
        low, high = 0, most - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._fits(middle, context):
                low = middle
            else:
                high = middle - 1
        return low

    def _fits(self, tokens: int, context: int) -> bool:
        shape = StepShape((*self.chunks, (tokens, context)), self.decodes, self.context_tokens)
        return self.cost.step_times_ns(shape, 1)[0] <= self.target_ns

    def spend(self, tokens: int, context: int, *, decode: bool) -> None:
        self.tokens_left -= tokens
        if decode:
            self.decodes += tokens
            self.context_tokens += context
        else:
            self.min_left = max(0, self.min_left - tokens)
            self.chunks.append((tokens or 1, context))  # a prompt cached whole computes its last token again

    def refund(self, tokens: int, context: int, *, decode: bool) -> None:
        """The minimum is not given back: it is there so that prompts get on, and one that was cut did."""
        self.tokens_left += tokens
        if decode:
            self.decodes -= tokens
            self.context_tokens -= context
        elif (
            tokens or 1,
            context,
        ) in self.chunks:  # else more was charged than is computed: hits unknown to the budget
            self.chunks.remove((tokens or 1, context))


@BUDGET.register("step-time")
class StepTime(BudgetPolicy):
    """Prefill up to a target for the step's time, by the cost model; decodes run whatever they take (bounds TBT).

    `target_s`: what a step may take. `prefill_min_tokens`: computed even beyond it, so that prompts get on where
    decodes alone use it up. `max_tokens`: of a step, decodes included.
    `cost`: the cost model; a scenario gives its own.
    """

    serve = "decode_first"
    counts_queue = False

    def __init__(
        self, target_s: float, cost: CostModel, prefill_min_tokens: int = 0, max_tokens: int = UNLIMITED
    ) -> None:
        self.target_ns = nanoseconds("target_s", target_s)
        if self.target_ns == 0:
            raise ValueError(f"target_s must be > 0, got {target_s:g}")
        if max_tokens < 1:
            raise ValueError(f"max_tokens must be >= 1, got {max_tokens}")
        if not 0 <= prefill_min_tokens <= max_tokens:
            raise ValueError(f"prefill_min_tokens must be >= 0 and <= max_tokens, got {prefill_min_tokens}")
        self.cost = cost
        self.prefill_min_tokens = prefill_min_tokens
        self.max_tokens = self.limit = max_tokens

    def open(self, engine: EngineView) -> Meter:
        return TimeMeter(self.cost, self.target_ns, self.max_tokens, self.prefill_min_tokens)

    def steady_steps(self, engine: EngineView, plan: BatchPlan) -> int:
        """Decodes always run. What they leave for a head that was looked at shrinks as their contexts grow."""
        looked_at_nobody = plan.deferred is not None and plan.deferred.blocker is Blocker.SLOTS
        return 1 if engine.waiting and not looked_at_nobody else FOREVER
