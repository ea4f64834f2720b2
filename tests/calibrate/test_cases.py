"""The order of cases: the same for the same input, and any beginning covers kinds and sizes."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest

from calibrate.cases import AGAIN, TURN, Limits, cases
from calibrate.tasks import TASK_FIELDS, TaskSpec
from tests.calibrate.small_run import LIMITS, MODEL

TINY = Limits(64, 8, 128, 512, 16, 1024)
TURN_CASES = len(TURN)


def first(count: int, limits: Limits = LIMITS, seed: int = 0) -> list[TaskSpec]:
    return list(islice(cases(MODEL, limits, seed), count))


def test_the_order_depends_on_model_limits_and_seed_alone() -> None:
    assert first(200) == first(200)
    assert first(200) != first(200, seed=1)


@pytest.mark.parametrize("limits", [LIMITS, TINY], ids=["cpu", "tiny"])
@pytest.mark.parametrize("seed", [0, 7])
def test_every_case_keeps_the_limits(limits: Limits, seed: int) -> None:
    for task in first(1500, limits, seed):
        if task.kind == "step":
            sequences = (*task.prefill, *task.verify, *((1, context) for context in task.decode))
            blocks = sum(-(-(tokens + context) // 16) for tokens, context in sequences)
            assert blocks * 16 <= limits.pool_tokens, task
            assert task.shape.tokens <= limits.max_tokens, task
            assert len(task.decode) + len(task.verify) <= limits.max_requests, task
            assert all(tokens + context <= limits.max_context_tokens for tokens, context in sequences), task


def test_one_turn_has_every_kind_and_starts_with_what_nobody_publishes() -> None:
    kinds = {task.kind for task in first(4 * TURN_CASES)}
    assert kinds == set(TASK_FIELDS)
    steps = [task for task in first(TURN_CASES) if task.kind == "step"]
    assert steps[0].prefill
    assert steps[0].decode
    assert any(task.prefill and task.verify for task in steps)
    assert any(task.verify and not task.prefill for task in steps)
    assert any(context for task in steps for _, context in task.prefill)
    unpublished = [t for t in steps if (t.prefill and t.decode) or t.verify or any(c for _, c in t.prefill)]
    assert len(unpublished) >= TURN_CASES / 2


def test_a_minute_of_cases_spans_the_sizes() -> None:
    """132 cases: within a factor of the ends of every range, and in each third of its logarithm."""
    steps = [task for task in first(6 * TURN_CASES) if task.kind == "step"]
    chunk_tokens = [sum(tokens for tokens, _ in task.prefill) for task in steps if task.prefill]
    decodes = [len(task.decode) for task in steps if task.decode and not task.verify]
    contexts = [sum(task.decode) // len(task.decode) for task in steps if task.decode]
    widths = {width for task in steps for width, _ in task.verify}
    for values, low, high in ((chunk_tokens, 4, 1500), (decodes, 2, 120), (contexts, 40, 3000)):
        assert min(values) <= low
        assert max(values) >= high
        edges = [low * (high / low) ** (third / 3) for third in range(4)]
        assert all(sum(a <= value <= b for value in values) >= 4 for a, b in pairwise(edges))
    assert {2, 9} <= widths


def test_contexts_of_a_batch_are_equal_or_uneven() -> None:
    batches = [task.decode for task in first(400) if task.kind == "step" and len(task.decode) >= 4]
    uneven = [max(batch) / (sum(batch) / len(batch)) for batch in batches]
    assert sum(ratio < 1.01 for ratio in uneven) >= 10
    assert sum(ratio > 2 for ratio in uneven) >= 10


def test_every_turn_repeats_earlier_steps() -> None:
    tasks = first(5 * TURN_CASES)
    repeats = [place for place in range(len(tasks)) if TURN[place % TURN_CASES] == AGAIN]
    assert len({tasks[place].key for place in repeats}) == len(repeats) == 10
    for place in repeats:
        assert tasks[place].kind == "step"
        assert tasks[place] in tasks[: place - 1]
