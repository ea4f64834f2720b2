"""Splitting a stretch changes nothing, bit for bit, for every model (law 12, FASTCORE pitfall 13)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.config import GraphsConfig, LinearConfig, ProfileConfig, RooflineConfig, build_cost_model
from costmodel.features import Feature
from costmodel.graphs import GraphBuckets
from costmodel.model import CostModel
from costmodel.shape import StepShape
from costmodel.token_weights import Term, TokenWeightsModel

PROFILE = "h100-llama-3.1-8b-bf16"
GRAPHS = GraphsConfig(sizes=(1, 2, 4, 8, 16, 64), eager_penalty_s=0.0015)
KNEES = [
    Term(Feature("steps"), 1.3e-3, "host"),
    Term(Feature("decode_rows"), 1.7e-6, "rows"),
    Term(Feature("prefill_kv_tokens"), 0.9e-9, "chunks"),
    Term(Feature("prefill_hidden_pairs"), 0.1e-9, "chunks"),
    Term(Feature("decode_kv_tokens"), 1e-9 / 3, "kv"),
    Term(Feature("decode_kv_tokens", past_each=7), 41.7e-9, "kv"),
    Term(Feature("decode_kv_tokens", past=1000, past_each=100), 13.1e-9, "kv"),
    Term(Feature("decode_kv_tokens", past=5000), 0.7e-9, "kv"),
    Term(Feature("mixed_decode_kv_tokens", past=900), 2.9e-9, "kv beside a chunk"),
    Term(Feature("mixed_decode_kv_tokens"), 0.3e-9, "kv beside a chunk"),
]
"""Knees that short stretches cross."""

MODELS: dict[str, CostModel] = {
    "linear": build_cost_model(LinearConfig(a_s=0.01, b_s_per_token=5e-5, prefill_a_s=0.02)),
    "linear with graphs": build_cost_model(LinearConfig(a_s=0.01, b_s_per_token=5e-5, graphs=GRAPHS)),
    "profile": build_cost_model(ProfileConfig(name=PROFILE)),
    "profile without graphs": build_cost_model(ProfileConfig(name=PROFILE, graphs=None)),
    "knees": TokenWeightsModel(KNEES),
    "knees with graphs": TokenWeightsModel(KNEES, None, GraphBuckets((1, 8, 40), 0.001)),
    "roofline": build_cost_model(RooflineConfig(device="h100-sxm", model="llama-3.1-8b", graphs=GRAPHS)),
    "roofline over GPUs": build_cost_model(
        RooflineConfig(device="a100-sxm-80g", model="llama-3.1-70b", tensor_parallel=4)
    ),
}

pieces = st.lists(st.tuples(st.integers(1, 9000), st.integers(0, 131_072)), max_size=3).map(tuple)


@st.composite
def shapes(draw: st.DrawFn) -> StepShape:
    decodes = draw(st.integers(0, 1100))
    context = draw(st.integers(0, 3000)) * decodes + draw(st.integers(0, 50_000)) if decodes else 0
    verify = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 131_072)), max_size=3).map(tuple))
    return StepShape(draw(st.one_of(st.just(()), pieces)), decodes, context, draw(st.sampled_from([(), verify])))


@pytest.mark.parametrize("name", MODELS)
@given(shape=shapes(), steps=st.integers(1, 200))
@settings(max_examples=150, deadline=None)
def test_each_step_depends_on_its_own_shape_only(name: str, shape: StepShape, steps: int) -> None:
    model = MODELS[name]
    times = model.step_times_ns(shape, steps)
    assert times == [model.step_times_ns(shape.after(i), 1)[0] for i in range(steps)]
    assert all(type(time) is int and time > 0 for time in times)


@pytest.mark.parametrize("name", MODELS)
@given(shape=shapes(), steps=st.integers(2, 200), data=st.data())
@settings(max_examples=50, deadline=None)
def test_a_stretch_may_be_split_anywhere(name: str, shape: StepShape, steps: int, data: st.DataObject) -> None:
    model = MODELS[name]
    cut = data.draw(st.integers(1, steps - 1))
    first, rest = model.step_times_ns(shape, cut), model.step_times_ns(shape.after(cut), steps - cut)
    assert first + rest == model.step_times_ns(shape, steps)


@pytest.mark.parametrize("name", MODELS)
@given(shape=shapes())
@settings(max_examples=100, deadline=None)
def test_a_step_is_rounded_once_and_its_parts_add_up(name: str, shape: StepShape) -> None:
    model = MODELS[name]
    seconds = model.seconds(shape)
    assert model.step_times_ns(shape, 1) == [pytest.approx(seconds * 1e9, abs=0.5001)]
    parts = model.parts(shape)
    assert sum(parts.values()) == pytest.approx(seconds, rel=1e-9)
    assert all(value >= 0 for value in parts.values())


@pytest.mark.parametrize("name", MODELS)
@given(shape=shapes())
@settings(max_examples=30, deadline=None)
def test_asking_changes_nothing(name: str, shape: StepShape) -> None:
    """Prices are remembered inside; the second answer is the first one."""
    model = MODELS[name]
    assert model.step_times_ns(shape, 3) == model.step_times_ns(shape, 3)


@pytest.mark.parametrize("name", MODELS)
def test_an_empty_step_takes_time(name: str) -> None:
    assert MODELS[name].step_times_ns(StepShape(), 3) == [MODELS[name].step_times_ns(StepShape(), 1)[0]] * 3
    assert MODELS[name].seconds(StepShape()) > 0


@pytest.mark.parametrize("name", MODELS)
@given(shape=shapes(), more=st.integers(1, 5000))
@settings(max_examples=50, deadline=None)
def test_reading_more_never_takes_less(name: str, shape: StepShape, more: int) -> None:
    longer = StepShape(shape.prefill, shape.decode_requests, shape.decode_context_tokens + more, shape.verify)
    model = MODELS[name]
    if shape.decode_requests:
        assert model.step_times_ns(longer, 1)[0] >= model.step_times_ns(shape, 1)[0]
