"""Decisions recorded from vLLM 0.32.0's real scheduler come out step for step (`vllm_v1/FORMAT.md`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.conformance import Scenario, check, compare, load
from sim.conformance.vllm_v1 import VllmV1Recorder

FOLDER = Path(__file__).parent / "vllm_v1"
SUFFIX = ".json.gz"
RECORDINGS = sorted(path.name.removesuffix(SUFFIX) for path in FOLDER.glob(f"*{SUFFIX}"))

NOT_BUILT = {
    "async_sliding_hybrid": "sliding windows",
    "sliding_window_hybrid": "sliding windows",
    "sliding_window_hybrid_prefix": "sliding windows",
    "sliding_window_only": "sliding windows",
    "spec_draft_model": "speculation",
    "spec_eagle": "speculation",
    "spec_max_len": "speculation",
    "spec_ngram": "speculation",
    "spec_ngram_budget": "speculation",
    "spec_ngram_preempt": "speculation",
    "spec_prefix_padded": "speculation",
}
"""Recordings of what the engine does not do yet, by name: when it does, they must come off this list."""

COVERED = [name for name in RECORDINGS if name not in NOT_BUILT]


def scenario_of(name: str) -> Scenario:
    recording = load(FOLDER / f"{name}{SUFFIX}")
    assert recording is not None
    (scenario,) = recording.scenarios
    return scenario


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_decision_is_the_recorded_one(name: str, request: pytest.FixtureRequest):
    """Who is scheduled, tokens, hits, blocks, preemptions, refusals, evictions, queues, endings: all of every turn."""
    if name in NOT_BUILT:
        request.applymarker(pytest.mark.xfail(reason=NOT_BUILT[name], strict=True, raises=NotImplementedError))
    scenario = scenario_of(name)
    result = check(scenario)
    if result.not_covered is not None:
        assert result.not_covered == NOT_BUILT[name]
        raise NotImplementedError(result.not_covered)
    assert result.difference is None
    assert result.steps == len(scenario.output["steps"])


def test_totals():
    """40 recordings with 6,534 turns; 29 of them with 5,463 turns are compared."""
    assert len(RECORDINGS) == 40
    scenarios = [scenario_of(name) for name in RECORDINGS]
    assert sum(len(scenario.output["steps"]) for scenario in scenarios) == 6534
    results = {scenario.name: check(scenario) for scenario in scenarios}
    compared = {name: result for name, result in results.items() if result.not_covered is None}
    assert list(compared) == COVERED
    assert len(compared) == 29
    assert sum(result.steps for result in compared.values()) == 5463


@pytest.mark.parametrize("name", COVERED)
def test_recordings_do_not_depend_on_stretches(name: str):
    """Law 12: plans of one step and plans cut to one step take the same decisions."""
    recorder, scenario = VllmV1Recorder(), scenario_of(name)
    result = compare(recorder, scenario.output, recorder.emit(scenario.input, max_stretch=1))
    assert (result.steps, result.difference) == (len(scenario.output["steps"]), None)


def test_a_wrong_recording_is_noticed():
    """The comparison can fail: one changed number in one turn is found, and the turn is named."""
    scenario = scenario_of("kv_preempt_fcfs")
    turn = scenario.output["steps"][100]
    turn["free_after"] += 1
    result = check(scenario)
    assert result.steps == 101
    assert (
        result.difference
        == f"step {turn['step']}: free_after is {turn['free_after'] - 1}, recorded {turn['free_after']}"
    )
