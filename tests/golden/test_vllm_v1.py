"""Decisions recorded from vLLM 0.32.0's real scheduler come out step for step (`vllm_v1/FORMAT.md`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.conformance import check, compare, emit, load

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


def path_of(name: str) -> Path:
    return FOLDER / f"{name}{SUFFIX}"


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_decision_is_the_recorded_one(name: str, request: pytest.FixtureRequest):
    """Who is scheduled, tokens, hits, blocks, preemptions, refusals, evictions, queues, endings: all of every turn."""
    if name in NOT_BUILT:
        request.applymarker(pytest.mark.xfail(reason=NOT_BUILT[name], strict=True, raises=NotImplementedError))
    result = check(path_of(name))
    if result.not_covered is not None:
        assert result.not_covered == NOT_BUILT[name]
        raise NotImplementedError(result.not_covered)
    assert result.difference is None
    assert result.steps == len(load(path_of(name))["steps"])


def test_totals():
    """40 recordings with 6,534 turns; 29 of them with 5,463 turns are compared."""
    assert len(RECORDINGS) == 40
    assert sum(len(load(path_of(name))["steps"]) for name in RECORDINGS) == 6534
    results = [check(path_of(name)) for name in RECORDINGS]
    compared = [result for result in results if result.not_covered is None]
    assert [result.scenario for result in compared] == COVERED
    assert len(compared) == 29
    assert sum(result.steps for result in compared) == 5463


@pytest.mark.parametrize("name", COVERED)
def test_recordings_do_not_depend_on_stretches(name: str):
    """Law 12: plans of one step and plans cut to one step take the same decisions."""
    recording = load(path_of(name))
    assert compare(recording, emit(recording, max_stretch=1)) == (len(recording["steps"]), None)


def test_a_wrong_recording_is_noticed():
    """The comparison can fail: one changed number in one turn is found, and the turn is named."""
    recording = load(path_of("kv_preempt_fcfs"))
    recording["steps"][100]["free_after"] += 1
    steps, difference = compare(recording, emit(recording))
    assert steps == 101
    assert difference is not None
    assert difference.startswith(f"step {recording['steps'][100]['step']}: free_after is ")
