"""CUDA-graph buckets: case F1, and what padding may and may not cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.config import GraphsConfig, LinearConfig, ProfileConfig, build_cost_model
from costmodel.graphs import GraphBuckets, vllm_v1_sizes
from costmodel.shape import StepShape

F1_SIZES = (1, 2, 4, *range(8, 257, 8))
CALIBRATED = build_cost_model(ProfileConfig(name="h100-llama-3.1-8b-bf16"))
F1 = GraphBuckets(F1_SIZES, eager_penalty_s=0.005)


@pytest.mark.parametrize(
    ("rows", "padded", "waste"), [(3, 4, 0.25), (5, 8, 0.375), (9, 16, 0.4375), (11, 16, 0.3125), (256, 256, 0)]
)
def test_f1_padding(rows: int, padded: int, waste: float) -> None:
    assert F1.pad(rows) == padded
    assert 1 - rows / padded == waste


def test_f1_beyond_the_largest_graph_is_eager_and_not_padded() -> None:
    assert F1.pad(257) is None
    assert F1.padding(StepShape((), 257, 257)) == (0, 0.005)


def test_f1_step_times() -> None:
    """T(9) = T(16) > T(8); a jump at 8 to 9 and at 256 to 257, flat inside."""
    model = build_cost_model(
        LinearConfig(a_s=0.01, b_s_per_token=1e-4, graphs=GraphsConfig(sizes=F1_SIZES, eager_penalty_s=0.005))
    )
    ms = {n: model.seconds(StepShape((), n, 100 * n)) * 1e3 for n in (8, 9, 12, 16, 17, 256, 257)}
    assert ms[8] == pytest.approx(10.8)
    assert ms[9] == ms[12] == ms[16] == pytest.approx(11.6)
    assert ms[17] == pytest.approx(12.4)
    assert ms[256] == pytest.approx(35.6)
    assert ms[257] == pytest.approx(35.7 + 5)


def test_f1_a_budget_between_sizes_runs_eagerly() -> None:
    """Stride 16 up to 2048 has 688 and 704, so 700 needs more than its budget unless 700 itself is captured."""
    stride = tuple(range(16, 2049, 16))
    assert GraphBuckets(stride, 0.0).pad(700) == 704
    capped = tuple(size for size in stride if size <= 700)
    assert capped[-1] == 688
    assert GraphBuckets(capped, 0.0).pad(700) is None
    assert GraphBuckets((*capped, 700), 0.0).pad(700) == 700


@given(n=st.integers(1, 600), each=st.integers(0, 20_000))
def test_f1_time_is_monotone_in_requests(n: int, each: int) -> None:
    """One more request at the batch's mean context never makes the step shorter."""
    fewer, more = (CALIBRATED.step_times_ns(StepShape((), count, count * each), 1)[0] for count in (n, n + 1))
    assert more >= fewer


def test_padding_reads_no_kv() -> None:
    """Nine and sixteen requests cost the same where they read the same; every KV token costs what it did."""
    config = ProfileConfig(name="h100-llama-3.1-8b-bf16", graphs=GraphsConfig(sizes=F1_SIZES))
    model, bare = build_cost_model(config), build_cost_model(config.model_copy(update={"graphs": None}))
    nine, longer = StepShape((), 9, 9 * 5000), StepShape((), 9, 9 * 5001)
    padding_s = model.seconds(nine) - bare.seconds(nine)
    assert padding_s > 0
    assert model.seconds(longer) - bare.seconds(longer) == pytest.approx(padding_s, rel=1e-6)
    assert model.parts(nine)["decode_attention"] == bare.parts(nine)["decode_attention"]


def test_steps_with_prefill_are_never_padded() -> None:
    assert F1.padding(StepShape(((3, 0),), 9, 9)) == (0, 0.0)
    assert F1.padding(StepShape()) == (0, 0.0)


def test_verified_tokens_are_padded_as_rows() -> None:
    """vLLM's sizes are token counts."""
    assert F1.padding(StepShape((), 2, 10, ((3, 5), (4, 5)))) == (16 - 9, 0.0)


def test_vllm_v1_default_sizes() -> None:
    """51 sizes at 512; up to twice max_num_seqs below that."""
    sizes = vllm_v1_sizes(256)
    assert len(sizes) == 51
    assert sizes[:5] == (1, 2, 4, 8, 16)
    assert sizes[-1] == 512
    assert {248, 256, 272} <= set(sizes)
    assert 264 not in sizes
    assert vllm_v1_sizes(1024) == sizes
    assert vllm_v1_sizes(20) == (1, 2, 4, 8, 16, 24, 32, 40)


@pytest.mark.parametrize("sizes", [(), (0, 1), (2, 1), (1, 1)])
def test_bad_sizes_are_named(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="graph sizes must be ascending, distinct and >= 1"):
        GraphBuckets(sizes, 0.0)


def test_bad_penalty() -> None:
    with pytest.raises(ValueError, match="eager_penalty_s must be finite and >= 0, got -1"):
        GraphBuckets((1,), -1)
