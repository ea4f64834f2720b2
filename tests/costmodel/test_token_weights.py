"""The token-weights model: the sum that its terms say, and its range."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.features import QUANTITY_NAMES, Feature, feature_values
from costmodel.profile import load_profile
from costmodel.shape import StepShape
from costmodel.token_weights import ROWS, Term, TokenWeightsModel, ValidRange

PROFILE = load_profile("h100-llama-3.1-8b-bf16")
MODEL = TokenWeightsModel(PROFILE.terms(), PROFILE.range())
chunks = st.lists(st.tuples(st.integers(1, 9000), st.integers(0, 100_000)), max_size=3).map(tuple)
widths = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 100_000)), max_size=3).map(tuple)
shapes = st.builds(StepShape, chunks, st.integers(0, 1500), st.integers(0, 10**7), widths)


@given(shape=shapes)
def test_every_quantity_is_priced(shape: StepShape) -> None:
    """One term for each that there is, with a knee: also what the shipped profile does not use."""
    terms = [Term(Feature(name, 3), 1e-3 * (place + 1), name) for place, name in enumerate(QUANTITY_NAMES)]
    terms.append(Term(Feature("steps"), 1e-3, "host"))
    if not shape.decode_requests:
        shape.decode_context_tokens = 0
    assert TokenWeightsModel(terms).seconds(shape) == pytest.approx(
        sum(TokenWeightsModel(terms).parts(shape).values()), rel=1e-12
    )


@given(shape=shapes)
def test_a_prediction_is_the_weighted_sum_of_the_features(shape: StepShape) -> None:
    """The features that the fit uses are the ones that predict."""
    if not shape.decode_requests:
        shape.decode_context_tokens = 0
    values = feature_values(shape, [term.feature for term in PROFILE.terms()])
    total_s = sum(value * term.s_per_unit for value, term in zip(values, PROFILE.terms(), strict=True))
    assert MODEL.seconds(shape) == pytest.approx(total_s, rel=1e-12)


def test_several_terms_on_one_quantity_and_a_repeated_feature() -> None:
    terms = [
        Term(Feature("steps"), 1.0, "host"),
        Term(Feature("gemm_rows", 2), 0.5, "gemm"),
        Term(Feature("gemm_rows", 2), 0.25, "gemm"),
        Term(Feature("gemm_rows"), 0.125, "rows"),
    ]
    shape = StepShape(((6, 0),))
    model = TokenWeightsModel(terms)
    assert model.seconds(shape) == pytest.approx(1 + 4 * 0.75 + 6 * 0.125)
    assert model.parts(shape) == {"host": 1.0, "gemm": 3.0, "rows": 0.75}


@given(shape=shapes, tokens=st.integers(1, 500), context=st.integers(0, 1000))
def test_more_work_never_takes_less_time(shape: StepShape, tokens: int, context: int) -> None:
    if not shape.decode_requests:
        shape.decode_context_tokens = 0
    grown = StepShape(
        (*shape.prefill, (tokens, context)), shape.decode_requests, shape.decode_context_tokens, shape.verify
    )
    assert MODEL.seconds(grown) > MODEL.seconds(shape)


def test_a_verification_of_width_one_is_nearly_a_decode() -> None:
    """The difference is the floor of decode attention, which verification does not have: it must stay small."""
    decodes, verifies = StepShape((), 64, 64 * 2048), StepShape(verify=((1, 2048),) * 64)
    assert MODEL.seconds(verifies) == pytest.approx(MODEL.seconds(decodes), rel=0.02)


RANGE = ValidRange(
    max_decode_requests=8,
    max_prefill_tokens=100,
    max_context_tokens=1000,
    max_decode_kv_tokens=4000,
    verification=False,
)


@pytest.mark.parametrize(
    ("shape", "complaint"),
    [
        (StepShape(((100, 1000),), 8, 3000), None),
        (StepShape((), 9, 9), "9 decode requests (fitted up to 8)"),
        (StepShape(((60, 0), (41, 0))), "101 prefill tokens (fitted up to 100)"),
        (StepShape(((1, 1001),)), "1001 context tokens of a request (fitted up to 1000)"),
        (StepShape((), 1, 1001), "1001 mean context tokens of decodes (fitted up to 1000)"),
        (StepShape((), 8, 4000), "4008 KV tokens read by decodes (fitted up to 4000)"),
        (StepShape(verify=((2, 3),)), "verification (weights derived, not measured)"),
    ],
)
def test_range(shape: StepShape, complaint: str | None) -> None:
    assert TokenWeightsModel([], RANGE).out_of_range(shape) == complaint


def test_a_model_without_range_never_complains() -> None:
    assert TokenWeightsModel([]).out_of_range(StepShape((), 9, 9)) is None


def test_remembered_values_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costmodel.token_weights.MEMO_ENTRIES", 2)
    model = TokenWeightsModel([Term(Feature("gemm_rows", 1), 1.0, "gemm")])
    for rows in range(2, 9):
        assert model.seconds(StepShape(((rows, 0),))) == rows - 1
    assert len(model._sums[ROWS]) == 2
    for decodes in range(2, 9):
        assert model.seconds(StepShape((), decodes, 0)) == decodes - 1
    assert len(model._fixed_s) == 2
