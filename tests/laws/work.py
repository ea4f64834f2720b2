"""Law 10: the work of a step is within every limit of its budget, what victims gave back being deducted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

from costmodel.shape import StepShape
from sim.core.engine import EngineCore
from sim.policies.budget import ListOrder, PerKind, TokenWork
from sim.policies.pages import PageChunks
from sim.policies.protocols import BudgetPolicy
from sim.policies.sharing import EqualShare
from sim.policies.step_time import StepTime


@dataclass(frozen=True, slots=True)
class Step:
    """A step that has been planned."""

    shape: StepShape
    sharers: int
    """Requests that ran or waited when the budget was opened."""
    whole_hits: int
    """Prompts that were cached whole: their forwards compute a token each that costs no budget."""

    @property
    def tokens(self) -> int:
        return self.shape.tokens - self.whole_hits

    @property
    def prefill_tokens(self) -> int:
        return self.shape.prefill_tokens - self.whole_hits

    @property
    def chunks(self) -> list[int]:
        return [tokens for tokens, _ in self.shape.prefill]


def check_work(core: EngineCore, shape: StepShape, whole_hits: int) -> None:
    """Of a step of the plan that the engine has made last."""
    sharers = len(core.running) + len(core.waiting) - len(core.latest_draft.swapped_in)
    check(core.spec.budget, Step(shape, sharers, whole_hits))
    assert len(core.running) <= core.spec.max_running


@singledispatch
def check(budget: BudgetPolicy, step: Step) -> None:
    raise AssertionError(f"no check for {budget}")


@check.register
def _(budget: ListOrder, step: Step) -> None:
    assert step.tokens <= budget.max_tokens
    if budget.chunk_cap and step.sharers > 1:
        cap = max(budget.chunk_cap, budget.max_tokens // step.sharers if budget.adaptive_cap else 0)
        assert all(tokens <= cap for tokens in step.chunks)


@check.register
def _(budget: PerKind, step: Step) -> None:
    assert step.tokens <= budget.max_tokens
    assert step.shape.decode_requests <= min(budget.max_decodes, budget.max_tokens - budget.prefill_min_tokens)
    assert step.prefill_tokens <= budget.max_prefill_tokens
    assert all(tokens <= budget.max_chunk_tokens for tokens in step.chunks)


@check.register
def _(budget: TokenWork, step: Step) -> None:
    work = budget.work.decode_work(step.shape.decode_requests, step.shape.decode_context_tokens)
    work += sum(budget.work.prefill_work(tokens, context) for tokens, context in step.shape.prefill)
    assert work <= budget.max_work + 1e-9
    assert all(tokens <= (budget.chunk_cap or tokens) for tokens in step.chunks)


@check.register
def _(budget: PageChunks, step: Step) -> None:
    shape = step.shape
    decodes = shape.decode_requests if budget.mixed else 0
    if budget.chunk_tokens:
        assert shape.prefill_tokens + (decodes if shape.prefill else 0) <= budget.chunk_tokens
    else:
        assert len(shape.prefill) <= 1 or shape.prefill_tokens + decodes <= budget.max_input_tokens


@check.register
def _(budget: StepTime, step: Step) -> None:
    assert step.shape.tokens <= budget.max_tokens
    in_time = budget.cost.step_times_ns(step.shape, 1)[0] <= budget.target_ns
    assert in_time or step.shape.prefill_tokens <= budget.prefill_min_tokens


@check.register
def _(budget: EqualShare, step: Step) -> None:
    assert step.shape.tokens <= budget.max_tokens
