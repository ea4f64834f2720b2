"""A scenario is one object, however it was described, and a result carries what it takes to run it again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim import Scenario, ScenarioError, make_scenario, read_scenario, replay
from sim.engines import VllmV1
from sim.results.columns import STATES
from sim.results.metrics import compute

BASE: dict[str, Any] = {
    "workload": {"kind": "inline", "requests": [{"prompt_tokens": 20, "output_tokens": 5}] * 3},
    "engine": {"preset": "vllm-v1", "max_num_seqs": 2, "num_gpu_blocks_override": 50},
    "cost": {"kind": "linear", "a_s": 0.01, "b_s_per_token": 0.0},
    "slo": {"ttft_s": 1.0},
}


def test_toml_json_and_python_build_the_same_object(tmp_path: Path) -> None:
    (tmp_path / "case.json").write_text(json.dumps(BASE))
    (tmp_path / "case.toml").write_text(
        '[workload]\nkind = "inline"\nrequests = [\n'
        + "  { prompt_tokens = 20, output_tokens = 5 },\n" * 3
        + ']\n[engine]\npreset = "vllm-v1"\nmax_num_seqs = 2\nnum_gpu_blocks_override = 50\n'
        + '[cost]\nkind = "linear"\na_s = 0.01\nb_s_per_token = 0.0\n[slo]\nttft_s = 1.0\n'
    )
    built = make_scenario(BASE)
    assert read_scenario(tmp_path / "case.json") == built == read_scenario(tmp_path / "case.toml")
    assert isinstance(built.engine, VllmV1)
    assert make_scenario(built.model_dump(mode="json")) == built


def test_a_result_can_be_run_again_from_what_it_carries(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,30,4\n0.5,50,6\n")
    first = replay(make_scenario({"workload": {"kind": "trace", "path": str(path)}}))
    assert str(tmp_path) not in json.dumps(first.scenario)
    again = dict(first.scenario)
    again["workload"] = {**again["workload"], "path": str(path)}
    second = replay(make_scenario(again))
    assert list(first.requests.end_ns) == list(second.requests.end_ns)
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,30,4\n0.5,50,7\n")
    with pytest.raises(ScenarioError, match=r"trace\.csv has sha256 .* the scenario was made for"):
        replay(make_scenario(again))


def test_relative_trace_paths_count_from_the_scenario_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,30,4\n")
    (tmp_path / "case.toml").write_text('[workload]\nkind = "trace"\npath = "data/t.csv"\n')
    assert len(replay(read_scenario(tmp_path / "case.toml")).trace) == 1


def changed(**tables: Any) -> dict[str, Any]:
    return {**BASE, **tables}


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (changed(engin={}), "scenario: engin is not a known key; did you mean 'engine'?"),
        (changed(engine={"preset": "vlm-v1"}), "did you mean 'vllm-v1'?"),
        (changed(engine={"block_size": 0}), "scenario: engine.block_size must be >= 1, got 0"),
        (changed(engine={"blok_size": 4}), "engine.blok_size is not a known key; did you mean 'block_size'?"),
        (changed(rate_scale=0), "scenario: rate_scale must be > 0, got 0"),
        (changed(max_tokens_from="guess"), "max_tokens rule must be one of"),
        (changed(workload={"kind": "inline", "requests": [{"prompt_tokens": 0, "output_tokens": 1}]}), "must be >= 1"),
        (
            changed(
                workload={
                    "kind": "inline",
                    "requests": [
                        {"arrival_s": 2, "prompt_tokens": 1, "output_tokens": 1},
                        {"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 1},
                    ],
                }
            ),
            "requests must be in order of arrival, got 2.0 before 1.0",
        ),
        ({"engine": {}}, "scenario: workload is missing"),
    ],
)
def test_errors_say_where_what_and_what_is_allowed(description: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        make_scenario(description)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"policies": {"budget": {"name": "token-work", "parameters": {"max_work": 0}}}},
            "policies.budget: max_work must be > 0, got 0",
        ),
        ({"policies": {"budget": "token-work"}}, "policies.budget: budget policy 'token-work' needs max_work"),
        (
            {"policies": {"order": "fifo"}},
            "policies.order: unknown order policy 'fifo': known are ",
        ),
        (
            {
                "initial": {
                    "running": [
                        {
                            "id": "big",
                            "prompt_tokens": 9000,
                            "computed_tokens": 9000,
                            "output_tokens": 1,
                            "remaining_output_tokens": 1,
                        }
                    ]
                }
            },
            "initial: initial state: request big needs 563 blocks, 49 are free",
        ),
        (
            {
                "workload": {
                    "kind": "inline",
                    "prefix_group_tokens": 24,
                    "requests": [{"prompt_tokens": 48, "output_tokens": 1, "prefix_ids": [1, 2]}],
                }
            },
            "groups of 24 tokens, which are no whole blocks of 16",
        ),
    ],
)
def test_errors_that_need_the_engine(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(message)):
        replay(make_scenario(changed(**tables)))


def test_policies_take_the_place_of_the_presets_own() -> None:
    """With 24-token prompts and an equal-weight work budget of 8 a prompt takes three steps."""
    run = replay(
        make_scenario(
            changed(
                workload={"kind": "inline", "requests": [{"prompt_tokens": 24, "output_tokens": 2}]},
                policies={"budget": {"name": "token-work", "parameters": {"max_work": 8}}},
            )
        )
    )
    assert list(run.logs[0].steps.prefill_tokens)[:3] == [8, 8, 8]


def test_calibrated_weights_come_from_the_cost_model() -> None:
    """A prefill token weighs a fraction of a decode at the reference, so more of them fit than of equal ones."""
    chunks = {}
    for weights in ("equal", "calibrated"):
        parameters: dict[str, Any] = {"max_work": 64}
        if weights == "calibrated":
            parameters["weights"] = "calibrated"
        run = replay(
            make_scenario(
                {
                    "workload": {"kind": "inline", "requests": [{"prompt_tokens": 2000, "output_tokens": 2}]},
                    "policies": {"budget": {"name": "token-work", "parameters": parameters}},
                }
            )
        )
        chunks[weights] = int(run.logs[0].steps.prefill_tokens[0])
    assert chunks["equal"] == 64
    assert chunks["calibrated"] > 2 * 64


def test_rate_scale_and_limit() -> None:
    """Arrival gaps are divided, lengths stay; a limit counts arrivals."""
    base = {
        "workload": {
            "kind": "inline",
            "requests": [{"arrival_s": float(at), "prompt_tokens": 20, "output_tokens": 5} for at in range(4)],
        }
    }
    slow, fast = replay(make_scenario(base)), replay(make_scenario({**base, "rate_scale": 2.0, "limit": 3}))
    assert list(fast.trace.arrival_ns) == [ns // 2 for ns in slow.trace.arrival_ns[:3]]
    assert np.array_equal(fast.trace.prompt_tokens, slow.trace.prompt_tokens[:3])


def test_a_run_with_nobody_left_to_run_is_told_apart_from_one_that_is_done() -> None:
    """Law 9: without preemption, two requests that both need the last block wait for ever; the run ends and says so."""
    run = replay(
        make_scenario(
            changed(
                workload={
                    "kind": "inline",
                    "requests": [{"prompt_tokens": 16, "output_tokens": 20, "max_tokens": 20}] * 2,
                },
                engine={"preset": "reference", "num_blocks": 2, "block_size": 16},
                policies={"preemption": "none"},
            )
        )
    )
    assert run.outcome.stalled is not None
    assert "2 requests run but none can go on" in run.outcome.stalled
    assert [STATES[state].value for state in run.requests.state] == ["running", "running"]


def test_a_request_that_outgrows_the_pool_fails_instead_of_preempting_itself_for_ever() -> None:
    """Law 9 for a lone request: vLLM refuses such a pool at start-up, a simulator must not loop."""
    run = replay(
        make_scenario(
            changed(
                workload={"kind": "inline", "requests": [{"prompt_tokens": 10, "output_tokens": 100}]},
                engine={"preset": "vllm-v1", "num_gpu_blocks_override": 3, "async_scheduling": False},
            )
        )
    )
    assert STATES[run.requests.state[0]].value == "failed"
    assert run.requests.detail[0] == "needs 3 blocks to go on, the pool has 2"
    assert run.requests.output_tokens[0] == 23  # 32 KV entries, the newest token has none


def test_what_came_out_before_the_run_is_not_counted_in_it() -> None:
    """A request of the initial state: its tokens of this run only, and no latency, for it did not arrive."""
    run = replay(
        make_scenario(
            changed(
                workload={"kind": "inline", "requests": []},
                engine={"preset": "reference", "num_blocks": 50},
                initial={
                    "running": [
                        {
                            "id": "r",
                            "prompt_tokens": 10,
                            "computed_tokens": 14,
                            "output_tokens": 5,
                            "remaining_output_tokens": 7,
                        }
                    ]
                },
            )
        )
    )
    assert list(run.requests.output_tokens) == [7]
    assert run.requests.end_ns[0] == 70_000_000
    rows = compute(run).rows
    assert rows["mean_tpot_s"].value is None
    assert rows["mean_ttft_s"].n == 0


def test_a_cached_prefix_must_fit_the_pool() -> None:
    with pytest.raises(ScenarioError, match="a cached prefix of 5 blocks does not fit the 2 free"):
        replay(
            make_scenario(
                changed(
                    workload={"kind": "inline", "requests": []},
                    engine={"preset": "vllm-v1", "num_gpu_blocks_override": 3},
                    initial={"cached": [{"prefix_ids": [1, 2, 3, 4, 5], "tokens": 80}]},
                )
            )
        )


def test_prefix_ids_of_an_initial_state_need_a_workload_that_uses_the_same() -> None:
    """A trace's own ids are numbered by its reader: an equal number would be a hit by accident."""
    with pytest.raises(ScenarioError, match="prefix ids need an inline workload, this one is 'bundled'"):
        replay(
            make_scenario(
                {"workload": {"kind": "bundled"}, "initial": {"cached": [{"prefix_ids": [0], "tokens": 256}]}}
            )
        )


def test_unknown_bundled_traces_and_ids_given_twice() -> None:
    with pytest.raises(ScenarioError, match=r"no bundled trace 'nope': chat-1k"):
        replay(make_scenario(changed(workload={"kind": "bundled", "name": "nope"})))
    twice = [{"id": "a", "prompt_tokens": 1, "output_tokens": 1}] * 2
    with pytest.raises(ScenarioError, match="requests have the id 'a' twice"):
        make_scenario(changed(workload={"kind": "inline", "requests": twice}))


def test_the_scenario_class_is_frozen() -> None:
    scenario: Any = make_scenario(BASE)
    with pytest.raises(ValueError, match="frozen"):
        scenario.seed = 3
    assert isinstance(scenario, Scenario)
