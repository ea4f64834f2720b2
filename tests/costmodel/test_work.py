"""Token-work: units, additivity, and that equal weights count tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.config import ProfileConfig, build_token_work
from costmodel.features import attention_pairs
from costmodel.linear import Line, LinearModel
from costmodel.profile import load_profile
from costmodel.shape import StepShape
from costmodel.token_weights import TokenWeightsModel
from costmodel.work import DEFAULT_REFERENCE, EQUAL_WORK, TokenWork, token_work

PROFILE = load_profile("h100-llama-3.1-8b-bf16")
CALIBRATED = build_token_work(ProfileConfig(name=PROFILE.name))
BOTH = pytest.mark.parametrize("work", [EQUAL_WORK, CALIBRATED], ids=["equal", "calibrated"])

chunks = st.lists(st.tuples(st.integers(1, 16_384), st.integers(0, 131_072)), max_size=4).map(tuple)
widths = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 131_072)), max_size=4).map(tuple)
decodes = st.lists(st.integers(0, 131_072), max_size=6)


@given(prefill=chunks, contexts=decodes, verify=widths)
def test_equal_weights_count_tokens(
    prefill: tuple[tuple[int, int], ...], contexts: list[int], verify: tuple[tuple[int, int], ...]
) -> None:
    shape = StepShape(prefill, len(contexts), sum(contexts), verify)
    assert EQUAL_WORK.work(shape) == shape.tokens


@BOTH
@given(prefill=chunks, contexts=decodes, verify=widths)
def test_a_batch_is_the_sum_of_its_items(
    work: TokenWork, prefill: tuple[tuple[int, int], ...], contexts: list[int], verify: tuple[tuple[int, int], ...]
) -> None:
    items = [work.prefill_work(tokens, context) for tokens, context in prefill]
    items += [work.decode_work(1, context) for context in contexts]
    items += [work.verify_work(width, context) for width, context in verify]
    shape = StepShape(prefill, len(contexts), sum(contexts), verify)
    assert work.work(shape) == pytest.approx(sum(items), rel=1e-12)
    assert work.decode_work(len(contexts), sum(contexts)) == pytest.approx(
        sum(items[len(prefill) : len(prefill) + len(contexts)])
    )


@BOTH
@given(tokens=st.integers(1, 50_000), context=st.integers(0, 50_000), cut=st.integers(1, 50_000))
def test_a_prompt_is_the_same_work_however_it_is_cut(work: TokenWork, tokens: int, context: int, cut: int) -> None:
    first = min(cut, tokens)
    pieces = work.prefill_work(first, context) + work.prefill_work(tokens - first, context + first)
    assert pieces == pytest.approx(work.prefill_work(tokens, context), rel=1e-12)


@BOTH
@given(tokens=st.integers(1, 20_000), context=st.integers(0, 100_000))
def test_more_is_more(work: TokenWork, tokens: int, context: int) -> None:
    assert work.prefill_work(tokens + 1, context) > work.prefill_work(tokens, context)
    assert work.decode_work(1, context + 1) >= work.decode_work(1, context) > 0
    assert work.verify_work(3, context) > work.verify_work(2, context) > work.verify_work(1, context)


@BOTH
def test_a_verification_of_width_one_is_a_decode(work: TokenWork) -> None:
    assert work.verify_work(1, 777) == work.decode_work(1, 777)


def test_the_unit_is_a_decode_at_the_reference() -> None:
    reference = PROFILE.reference
    assert CALIBRATED.decode_work(1, reference.context_tokens) == pytest.approx(1)
    model = TokenWeightsModel(PROFILE.terms())
    n, context = reference.decode_requests, reference.context_tokens
    batch, double = StepShape((), n, n * context), StepShape((), 2 * n, 2 * n * context)
    unit_s = (model.seconds(double) - model.seconds(batch)) / n
    assert CALIBRATED.work(double) - CALIBRATED.work(batch) == pytest.approx(n)
    chunk = reference.prefill_chunk_tokens
    mixed = StepShape(((chunk, 0),), n, n * context)
    added_s = model.seconds(mixed) - model.seconds(batch)
    assert CALIBRATED.prefill_work(chunk, 0) * unit_s == pytest.approx(added_s)
    wide = reference.verify_width
    extra_s = model.seconds(StepShape(verify=((wide, context),) * n)) - model.seconds(
        StepShape(verify=((1, context),) * n)
    )
    assert n * (CALIBRATED.verify_work(wide, context) - 1) * unit_s == pytest.approx(extra_s)


def test_a_decode_is_mostly_its_kv_and_a_prefill_token_is_cheap() -> None:
    """What makes the equal count only a teaching approximation."""
    assert 2048 * CALIBRATED.decode_kv_token > 0.6
    assert 0.1 < CALIBRATED.prefill_work(2048, 0) / 2048 < 0.25
    assert 0 < CALIBRATED.verify_work(2, 2048) - 1 < 0.1


def test_a_linear_model_weighs_all_tokens_equally() -> None:
    """The general derivation agrees with `EQUAL_WORK` up to rounding."""
    found = token_work(LinearModel(Line(0.01, 5e-5)), DEFAULT_REFERENCE)
    for name in TokenWork.__dataclass_fields__:
        assert getattr(found, name) == pytest.approx(getattr(EQUAL_WORK, name), abs=1e-9)


@BOTH
@given(prefill=st.lists(chunks, min_size=1, max_size=4), contexts=decodes)
def test_columns_and_shapes_agree(
    work: TokenWork, prefill: list[tuple[tuple[int, int], ...]], contexts: list[int]
) -> None:
    steps = [StepShape(step, len(contexts), sum(contexts)) for step in prefill]
    found = work.work_of_columns(
        prefill_tokens=np.array([step.prefill_tokens for step in steps]),
        prefill_pairs=np.array([sum(attention_pairs(*chunk) for chunk in step.prefill) for step in steps]),
        decode_requests=np.array([step.decode_requests for step in steps]),
        decode_context_tokens=np.array([step.decode_context_tokens for step in steps]),
    )
    assert found.dtype == np.float64
    assert found.tolist() == pytest.approx([work.work(step) for step in steps], rel=1e-12)
