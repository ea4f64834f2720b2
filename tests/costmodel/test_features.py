"""Quantities and features: exact numbers, and the same ones for one step and for many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.features import (
    QUANTITY_NAMES,
    Feature,
    attention_pairs,
    feature_matrix,
    feature_values,
    quantities,
    quantity_matrix,
)
from costmodel.shape import StepShape

MIXED = StepShape(((512, 1000), (3, 0)), 10, 5000, ((4, 100), (1, 7)))
FEATURES = [
    *(Feature(name) for name in QUANTITY_NAMES),
    Feature("gemm_rows", 128),
    Feature("logit_rows", 3),
    Feature("decode_kv_tokens", 0, 128),
    Feature("decode_kv_tokens", 1000, 16),
]

pairs_of = st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 200_000)), max_size=4).map(tuple)
shapes = st.builds(StepShape, pairs_of, st.integers(0, 2000), st.integers(0, 10**8), pairs_of)


def test_quantities_of_a_mixed_step() -> None:
    assert quantities(MIXED)._asdict() == {
        "steps": 1,
        "device_steps": 1,
        "requests": 14,
        "gemm_rows": 530,
        "logit_rows": 17,
        "prefill_steps": 1,
        "prefill_chunks": 2,
        "prefill_tokens": 515,
        "prefill_pairs": 512 * 1000 + 512 * 513 // 2 + 6,
        "prefill_hidden_pairs": 512 * 511 // 2,
        "prefill_kv_tokens": 1515,
        "decode_steps": 1,
        "decode_requests": 10,
        "decode_rows": 10,
        "verify_requests": 2,
        "verify_extra_rows": 3,
        "verify_extra_pairs": 102 + 103 + 104,
        "verify_kv_tokens": 104 + 8,
        "mixed_decode_kv_tokens": 5010,
        "decode_kv_tokens": 5010,
    }


def test_an_empty_step_is_only_a_step() -> None:
    assert quantities(StepShape())._asdict() == {name: int(name == "steps") for name in QUANTITY_NAMES}


def test_padding_adds_rows_and_requests_and_reads_nothing() -> None:
    plain, padded = quantities(MIXED)._asdict(), quantities(MIXED, 6)._asdict()
    grown = {name for name in QUANTITY_NAMES if padded[name] != plain[name]}
    assert grown == {"requests", "gemm_rows", "logit_rows", "decode_rows"}
    assert all(padded[name] == plain[name] + 6 for name in grown)


@given(shape=shapes, steps=st.integers(0, 500))
def test_only_the_kv_read_by_decodes_changes_in_a_stretch(shape: StepShape, steps: int) -> None:
    """What the whole pricing of stretches rests on."""
    now, later = quantities(shape), quantities(shape.after(steps))
    assert now[:-2] == later[:-2]
    assert later.mixed_decode_kv_tokens == (later.decode_kv_tokens if shape.prefill else 0)
    assert later.decode_kv_tokens - now.decode_kv_tokens == steps * shape.decode_requests


@given(tokens=st.integers(1, 5000), context=st.integers(0, 5000), cut=st.integers(0, 5000))
def test_pairs_of_chunks_add_up(tokens: int, context: int, cut: int) -> None:
    """However a prompt is cut, the pairs are the same."""
    first = min(cut, tokens)
    rest = attention_pairs(tokens - first, context + first)
    assert attention_pairs(first, context) + rest == attention_pairs(tokens, context)


@given(many=st.lists(shapes, max_size=5))
def test_matrix_and_scalar_agree_bit_for_bit(many: list[StepShape]) -> None:
    assert feature_matrix(many, FEATURES).tolist() == [feature_values(shape, FEATURES) for shape in many]
    assert quantity_matrix(many).tolist() == [list(quantities(shape)) for shape in many]


def test_hinges() -> None:
    values = feature_values(MIXED, FEATURES[-4:])
    assert values == [530 - 128, 17 - 3, 5010 - 1280, 5010 - 1000 - 160]
    assert feature_values(StepShape(), FEATURES[-4:]) == [0, 0, 0, 0]


def test_names() -> None:
    assert [f.name for f in FEATURES[-4:]] == [
        "gemm_rows_past_128",
        "logit_rows_past_3",
        "decode_kv_tokens_past_128_each",
        "decode_kv_tokens_past_1000_past_16_each",
    ]


@pytest.mark.parametrize(
    ("quantity", "past", "past_each", "complaint"),
    [
        ("rows", 0, 0, "unknown quantity 'rows': known are steps, "),
        ("steps", -1, 0, "a knee must be >= 0, got past=-1"),
        ("gemm_rows", 0, 5, "past_each is for decode_kv_tokens only, got it for gemm_rows"),
    ],
)
def test_bad_features(quantity: str, past: int, past_each: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Feature(quantity, past, past_each)
