"""Decisions recorded from other engines come out step for step (`FORMAT.md`): a test per scenario, for every recorder.

A new recorder is found and tested here without a change to this file.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest

from sim.conformance import RECORDERS, NotCovered, Recorder, Scenario, check, load_folder

RECORDINGS = list(load_folder(Path(__file__).parent))
SCENARIOS = [scenario for recording in RECORDINGS if not recording.is_oracle for scenario in recording.scenarios]

LEFT_OUT = {
    "vllm-v1": {
        "alloc",  # the blocks of every attempt: what comes of them is in sched, preempted and alloc_failed
        "proposed",  # drafts: speculation is not built yet
    },
}
"""Recorded fields that are neither compared nor printed, by engine, and why."""

every_scenario = pytest.mark.parametrize(
    "scenario", SCENARIOS, ids=lambda scenario: f"{scenario.engine}-{scenario.name}"
)


def recorder_of(scenario: Scenario) -> Recorder:
    if scenario.engine not in RECORDERS.names():
        pytest.skip(f"{scenario.engine}: engine not built yet")
    recorder: Recorder = RECORDERS.make(scenario.engine)
    return recorder


@every_scenario
def test_every_decision_is_the_recorded_one(scenario: Scenario) -> None:
    recorder_of(scenario)
    result = check(scenario)
    if result.not_covered is not None:
        pytest.skip(result.not_covered)
    assert result.difference is None
    assert result.steps == len(scenario.output.get("steps", []))


@every_scenario
def test_logs_do_not_depend_on_stretches(scenario: Scenario) -> None:
    """Law 12: plans of one step and plans cut to one step take the same decisions. And inputs stay as they are."""
    recorder, before = recorder_of(scenario), deepcopy(scenario.input)
    try:
        free = recorder.emit(scenario.input)
    except NotCovered as what:
        pytest.skip(str(what))
    assert recorder.emit(scenario.input, max_stretch=1) == free
    assert scenario.input == before


@pytest.mark.parametrize("engine", sorted({recording.engine for recording in RECORDINGS}))
def test_no_recorded_field_is_forgotten(engine: str) -> None:
    """What a recording holds is compared, or printed, or left out by name."""
    scenarios = [each for recording in RECORDINGS if recording.engine == engine for each in recording.scenarios]
    recorder = recorder_of(scenarios[0])
    recorded = set().union(*(scenario.output for scenario in scenarios)) - {"steps"}
    recorded = recorded.union(*(step for scenario in scenarios for step in scenario.output.get("steps", [])))
    assert recorded - {*recorder.compared, *recorder.printed} == LEFT_OUT.get(engine, set())


def test_totals() -> None:
    """11 engines were recorded; beside vLLM V1's, 10 files with 55 scenarios."""
    assert len({recording.engine for recording in RECORDINGS}) == 11
    assert len([recording for recording in RECORDINGS if not recording.is_oracle]) == 10
    assert len(SCENARIOS) == 55
