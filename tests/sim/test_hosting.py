"""A pool on the host for any preset, from the scenario or the command line."""

from __future__ import annotations

from typing import Any

import pytest

from costmodel.config import ProfileConfig
from costmodel.profile import Rate, load_profile
from sim.replay import hardware_of, replay
from sim.results.metrics import compute
from sim.results.run import RunResult
from sim.scenario import ScenarioError, make_scenario

TIGHT = {"preset": "vllm-v1", "async_scheduling": False, "num_gpu_blocks_override": 100, "max_model_len": 800}


def run(preemption: Any = None, **more: Any) -> RunResult:
    """A burst that does not fit."""
    rows = [{"arrival_s": 0.0, "prompt_tokens": 300 + row, "output_tokens": 200} for row in range(8)]
    policies = {} if preemption is None else {"preemption": preemption}
    description = {"workload": {"kind": "inline", "requests": rows}, "engine": TIGHT, "policies": policies, **more}
    return replay(make_scenario(description))


SWAP = {"name": "newest", "parameters": {"mode": "swap"}}


def test_swapping_moves_blocks_and_computes_nothing_again() -> None:
    """Every victim goes and comes back: as many blocks in as out; each has 16 * 131,072 bytes."""
    metrics = compute(run(SWAP, host_blocks=500))
    swaps, blocks = metrics.value("num_swaps"), metrics.value("swapped_blocks")
    assert swaps == metrics.value("num_preemptions") > 0
    assert blocks is not None
    assert blocks % 2 == 0
    assert blocks >= 2 * 19 * swaps  # a prompt of 300 has 19
    assert metrics.value("swapped_bytes") == blocks * 16 * 131_072
    assert metrics.value("recomputed_tokens") == 0
    assert metrics.value("num_finished") == 8


def test_recompute_moves_nothing() -> None:
    metrics = compute(run())
    assert [metrics.value(name) for name in ("num_swaps", "swapped_blocks", "swapped_bytes")] == [0, 0, 0]


def test_the_link_takes_time() -> None:
    """Steps of 10 ms, and 32,768 ns more for each block moved."""
    cost = {"kind": "linear", "a_s": 0.01, "b_s_per_token": 0.0}
    steps = run(SWAP, host_blocks=500, cost=cost).logs[0].steps
    assert steps.ends_ns[-1] == len(steps.ends_ns) * 10_000_000 + int(steps.swapped_blocks.sum()) * 32_768


def test_cheaper_uses_the_runs_own_cost_model() -> None:
    """300 tokens again take milliseconds; 19 blocks out and back over PCIe 1.2 ms: here swapping is cheaper."""
    metrics = compute(run("cheaper", host_blocks=500))
    assert metrics.value("num_swaps") == metrics.value("num_preemptions") > 0


def test_asynchronous_scheduling_swaps_too() -> None:
    metrics = compute(run(SWAP, host_blocks=500, engine={**TIGHT, "async_scheduling": True}))
    assert metrics.value("num_swaps") > 0
    assert metrics.value("num_finished") == 8


@pytest.mark.parametrize(
    ("preemption", "more", "message"),
    [
        (SWAP, {}, "the preemption policy swaps, which needs a pool on the host: give host_blocks"),
        ("cheaper", {}, "needs a pool on the host"),
        (SWAP, {"host_blocks": 0}, "host_blocks must be >= 1, got 0"),
    ],
)
def test_clear_errors(preemption: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        run(preemption, **more)


def test_vllm_v0_has_a_pool_of_its_own() -> None:
    """swap_space is 4 GiB unless said otherwise; with none, swapping is refused."""
    engine = {"preset": "vllm-v0", "num_gpu_blocks_override": 100, "max_model_len": 800, "preemption_mode": "swap"}
    assert compute(run(engine=engine)).value("num_swaps") > 0
    with pytest.raises(ScenarioError, match="needs a pool on the host"):
        run(engine={**engine, "swap_space": 0})


def test_the_link_is_as_fast_as_the_profile_has_measured_it() -> None:
    """There and back: the harmonic mean of both ways; by the data sheet where nobody measured."""
    shipped, cost = load_profile("h100-llama-3.1-8b-bf16"), ProfileConfig(name="h100-llama-3.1-8b-bf16")
    assert hardware_of(cost, shipped).host_link_bytes_per_s == 64e9
    ways = [Rate(what=what, value=v, unit="B/s", noise_ratio=0) for what, v in (("swap_out", 20e9), ("swap_in", 30e9))]
    measured = shipped.model_copy(update={"rates": (*ways, Rate(what="copy", value=1e12, unit="B/s", noise_ratio=0))})
    assert hardware_of(cost, measured).host(100, 16).ns_per_block == pytest.approx(16 * 131_072 / 24)


def test_bytes_of_a_block_follow_the_profiles_dtype() -> None:
    shipped, cost = load_profile("h100-llama-3.1-8b-bf16"), ProfileConfig(name="h100-llama-3.1-8b-bf16")
    wide = shipped.model_copy(update={"dtype": "float32", "tensor_parallel": 2})
    assert hardware_of(cost, shipped).kv_bytes_per_token == hardware_of(cost, wide).kv_bytes_per_token == 131_072


def test_a_pool_that_nobody_uses_does_no_harm() -> None:
    """So that policies that swap and that do not can be compared under one scenario."""
    assert run(None, host_blocks=5).metrics is not None
