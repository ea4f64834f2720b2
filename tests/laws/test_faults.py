"""The seven faults that every engine has had once (DESIGN 10), one named test each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from costmodel.config import GraphsConfig, LinearConfig, build_cost_model
from costmodel.profile import load_profile
from costmodel.shape import StepShape
from sim import make_scenario, replay
from sim.core.engine import EngineCore
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE, Reference, VllmV1
from sim.kv.content import Content
from sim.results.run import RunResult

PROFILE = "h100-llama-3.1-8b-bf16"


def run(requests: list[dict[str, Any]], engine: dict[str, Any], **scenario: Any) -> RunResult:
    description = {
        "workload": {"kind": "inline", "requests": requests},
        "engine": engine,
        "cost": {"kind": "linear", "a_s": 0.01, "b_s_per_token": 1e-4},
        **scenario,
    }
    return replay(make_scenario(description))


@pytest.mark.parametrize("preset", ["reference", "vllm-v1"])
def test_fault_1_the_steps_budget_is_not_exceeded_by_decodes_plus_prefills(preset: str) -> None:
    flags = {"reference": {"token_budget": 32}, "vllm-v1": {"max_num_batched_tokens": 32}}[preset]
    requests = [{"arrival_s": at * 0.02, "prompt_tokens": 70, "output_tokens": 30} for at in range(30)]
    steps = run(requests, {"preset": preset, **flags}).logs[0].steps
    work = steps.prefill_tokens + steps.decode_requests
    assert work.max() == 32
    assert ((steps.prefill_tokens > 0) & (steps.decode_requests > 0)).any()


def test_fault_2_prompt_and_max_new_are_not_off_by_one() -> None:
    """O outputs = one prefill step + O - 1 decode steps; the last token never gets a KV entry."""
    core = EngineCore(Reference(block_size=1, num_blocks=100).spec(UNKNOWN_HARDWARE), max_stretch=1)
    core.submit(Request("r", prompt_tokens=10, max_tokens=5), stop_after=5)
    used = []
    while (plan := core.plan_step()) is not None:
        used.append(core.used_blocks)
        core.commit_step(plan, 1)
    assert used == [10, 11, 12, 13, 14]  # P + O - 1


def test_fault_3_a_preempted_requests_references_come_back_and_a_shared_prefix_stays() -> None:
    """Two share a prefix; the newest is preempted: its own blocks are free, the shared ones still have one holder."""
    ids = (1, 2, 3, 4)
    config = VllmV1(block_size=4, num_gpu_blocks_override=8, async_scheduling=False, max_model_len=100)
    core = EngineCore(config.spec(UNKNOWN_HARDWARE), max_stretch=1)
    for name in ("old", "new"):
        content = Content(ids, shared_blocks=4, owner=0)
        core.submit(Request(name, prompt_tokens=17, max_tokens=40, content=content), stop_after=40)
    preempted = False
    for _ in range(60):
        plan = core.plan_step()
        assert plan is not None
        core.commit_step(plan, 1)
        core.check_invariants()  # used + free = total, with shared blocks counted once
        if plan.preempted:
            preempted = True
            (old,) = core.running
            assert old.id == "old"
            assert core.used_blocks == core.held_blocks(old)
            assert core.store.match(plan.preempted[0]).blocks >= 4
            break
    assert preempted


def test_fault_4_recompute_is_charged_as_the_prefill_it_is() -> None:
    """Prefill tokens of all steps = prompts + what was recomputed; and that work takes time."""
    requests = [{"prompt_tokens": 34, "output_tokens": 35, "max_tokens": 35}] * 2
    tight = run(requests, {"preset": "reference", "block_size": 16, "num_blocks": 6})
    roomy = run(requests, {"preset": "reference", "block_size": 16, "num_blocks": 60})
    lost = sum(tight.requests.lost_tokens)
    pending = sum(tight.requests.preemptions)  # each recompute also computes the token that was waiting
    assert lost == 48
    assert tight.logs[0].steps.prefill_tokens.sum() == 68 + lost + pending
    assert roomy.logs[0].steps.prefill_tokens.sum() == 68
    assert tight.outcome.end_ns > roomy.outcome.end_ns


def test_fault_5_a_queue_timeout_reaches_the_scheduler_not_only_the_client() -> None:
    """The request that timed out is never admitted: the slot goes to the next one."""
    result = run(
        [
            {"prompt_tokens": 4, "output_tokens": 100, "max_tokens": 100},
            {"arrival_s": 0.1, "prompt_tokens": 4, "output_tokens": 100, "max_tokens": 100, "queue_timeout_s": 0.2},
            {"arrival_s": 0.2, "prompt_tokens": 4, "output_tokens": 1, "max_tokens": 1},
        ],
        {"preset": "reference", "slots": 1},
    )
    assert result.requests.end_ns[1] == 300_000_000
    assert result.requests.admitted_ns[1] == -1
    assert result.requests.admitted_ns[2] == result.requests.end_ns[0]
    assert np.asarray(result.logs[0].steps.running).max() == 1


def test_fault_6_graph_buckets_cost_time_and_the_pool_leaves_room_for_the_workspace() -> None:
    """Padding costs time, never blocks or tokens; the profile's pool subtracts graphs and activations by name."""
    graphs = GraphsConfig(sizes=(1, 2, 4, 8, 16))
    padded = build_cost_model(LinearConfig(a_s=0.01, b_s_per_token=1e-4, graphs=graphs))
    plain = build_cost_model(LinearConfig(a_s=0.01, b_s_per_token=1e-4))
    nine = StepShape(decode_requests=9, decode_context_tokens=900)
    sixteen = StepShape(decode_requests=16, decode_context_tokens=1600)
    assert padded.seconds(nine) == padded.seconds(sixteen) > plain.seconds(nine)
    requests = [{"prompt_tokens": 16, "output_tokens": 20, "max_tokens": 20}] * 9
    results = [
        run(requests, {"preset": "reference"}, cost={"kind": "linear", "a_s": 0.01, "b_s_per_token": 1e-4, **more})
        for more in ({}, {"graphs": {"sizes": [1, 2, 4, 8, 16]}})
    ]
    assert results[0].outcome.end_ns < results[1].outcome.end_ns
    assert results[0].engines[0].peak_used_blocks == results[1].engines[0].peak_used_blocks
    assert list(results[0].requests.output_tokens) == list(results[1].requests.output_tokens)
    lines = " ".join(item.what for item in load_profile(PROFILE).pool.arithmetic if item.num_bytes < 0).lower()
    for word in ("weights", "activation", "graph"):
        assert word in lines


def test_fault_7_admission_counts_tokens_not_characters(tmp_path: Any) -> None:
    """Lengths are token counts everywhere: a long id or client name changes nothing, and text has no column."""
    path = tmp_path / "t.csv"
    rows = ["0,16,4,a,c", "0,16,4," + "x" * 150 + "," + "y" * 150]
    path.write_text("arrival_s,prompt_tokens,output_tokens,request_id,client\n" + "\n".join(rows) + "\n")
    result = replay(
        make_scenario(
            {
                "workload": {"kind": "trace", "path": str(path)},
                "engine": {"preset": "reference", "block_size": 16, "num_blocks": 4},
            }
        )
    )
    assert list(result.requests.admitted_ns) == [0, 0]
    assert result.logs[0].steps.prefill_tokens[0] == 32
