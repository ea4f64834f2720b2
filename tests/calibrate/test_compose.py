"""Composed steps: sums of known parts, and the approximation of chunks behind a context."""

from __future__ import annotations

import pytest

from calibrate.compose import StepComposer
from costmodel.features import attention_pairs
from costmodel.shape import StepShape


def test_a_mixed_step_is_the_sum_of_its_parts(composer: StepComposer) -> None:
    """All projections at all rows, the head at one row per request, attention of each kind by itself."""
    parts = composer.parts(StepShape(((1000, 0),), 24, 24 * 500))
    rows_blocks, layers = 1024 / 16, 32
    assert parts["qkv"] == pytest.approx(layers * 24e-6 * rows_blocks)
    assert parts["gate_up"] == pytest.approx(layers * 112e-6 * rows_blocks)
    assert parts["logits"] == pytest.approx(501e-6 * 128 / 16)
    assert parts["prefill_attention"] == pytest.approx(layers * (10e-6 + 500_500e-9))
    assert parts["decode_attention"] == pytest.approx(layers * (10e-6 + 24e-6 + 12_000e-9))
    assert composer.seconds(StepShape(((1000, 0),), 24, 24 * 500)) == sum(parts.values())


def test_small_kernels_are_launches_and_bytes(composer: StepComposer) -> None:
    """163 launches; 90,112 values of 2 B per row and layer and 6 * 4096 outside, 10 B per logit, at 0.8 * 3.35 TB/s."""
    moved = 100 * (32 * 90_112 + 6 * 4096) * 2 + 128_256 * 10
    found = composer.parts(StepShape(((100, 0),)))["small_kernels"]
    assert found == pytest.approx(163 * 1.7e-6 + moved / 2.68e12)
    assert composer.small_kernels_s_per_row == pytest.approx(((32 * 90_112 + 6 * 4096) * 2 + 128_256 * 10) / 2.68e12)


@pytest.mark.parametrize(("tokens", "context"), [(512, 0), (512, 4096), (1, 1), (64, 100_000)])
def test_a_chunk_behind_a_context_costs_its_pairs(composer: StepComposer, tokens: int, context: int) -> None:
    """Where a prompt costs its pairs; also beyond the longest prompt measured."""
    found = composer.parts(StepShape(((tokens, context),)))["prefill_attention"]
    assert found == pytest.approx(32 * (10e-6 + attention_pairs(tokens, context) * 1e-9), rel=1e-4)


def test_chunks_of_a_prompt_add_up_to_it(composer: StepComposer) -> None:
    """Apart from one floor of the kernel per step."""
    whole = composer.parts(StepShape(((3000, 0),)))["prefill_attention"]
    chunks = [composer.parts(StepShape(((1000, done),)))["prefill_attention"] for done in (0, 1000, 2000)]
    assert sum(chunks) - whole == pytest.approx(2 * 32 * 10e-6, rel=0.01)


def test_several_chunks_share_a_floor(composer: StepComposer) -> None:
    found = composer.parts(StepShape(((100, 0), (200, 300))))["prefill_attention"]
    pairs = attention_pairs(100, 0) + attention_pairs(200, 300)
    assert found == pytest.approx(32 * (10e-6 + pairs * 1e-9), rel=1e-3)
