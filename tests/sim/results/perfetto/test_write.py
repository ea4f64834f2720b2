"""The file is what the trace-event format says it must be, and what happened in the run."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.core.lifecycle import State
from sim.results.measure import Measured
from sim.results.metrics import compute
from sim.results.perfetto.events import Window
from sim.results.perfetto.write import timeline, write_perfetto
from sim.results.run import RunResult

Runs = Callable[..., RunResult]
Events = list[dict[str, Any]]

REQUIRED = {
    "M": {"name", "pid", "args"},
    "X": {"name", "pid", "tid", "ts", "dur"},
    "i": {"name", "pid", "tid", "ts", "s"},
    "C": {"name", "pid", "ts", "args"},
    "b": {"name", "cat", "pid", "tid", "ts", "id2"},
    "e": {"name", "cat", "pid", "tid", "ts", "id2"},
    "n": {"name", "cat", "pid", "tid", "ts", "id2"},
}
"""Of each phase that we write: the fields that the published form ("Trace Event Format", Google) asks for."""


def check_form(document: dict[str, Any]) -> Events:
    """The rules of the published form, and of Perfetto's importer, as far as they are about what we write."""
    assert set(document) <= {"traceEvents", "displayTimeUnit", "otherData"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    events: Events = document["traceEvents"]
    for event in events:
        assert event["ph"] in REQUIRED, event
        assert set(event) >= REQUIRED[event["ph"]], event
        assert isinstance(event["name"], str), event
        assert event["name"], event
        assert isinstance(event["pid"], int), event
        assert isinstance(event["ts"], int), event
        assert event["ts"] >= 0, event
        if event["ph"] == "X":
            assert event["dur"] > 0, event
        if event["ph"] == "i":
            assert event["s"] in "tpg", event
        if event["ph"] == "C":
            assert event["args"], event
            assert all(type(value) in (int, float) for value in event["args"].values()), event
        if "id2" in event:
            (local,) = event["id2"].values()
            assert isinstance(local, str), event
            assert local, event
    return events


def check_slices(events: Events) -> None:
    """On a thread no slice overlaps another."""
    for slices in by(events, "X", lambda event: (event["pid"], event["tid"])).values():
        ends = [event["ts"] + event["dur"] for event in slices]
        assert all(end <= event["ts"] for end, event in zip(ends, slices[1:], strict=False))


def check_lanes(events: Events) -> None:
    """Every beginning has its end, in order of nesting; a request is one outer slice, its phases follow each other."""
    open_: dict[Any, list[str]] = defaultdict(list)
    at: dict[Any, int] = defaultdict(int)
    outer: set[Any] = set()
    for event in events:
        if event["ph"] not in "ben":
            continue
        key = event["pid"], event["cat"], event["id2"]["local"]
        assert event["ts"] >= at[key]
        at[key] = event["ts"]
        if event["ph"] == "b":
            assert bool(open_[key]) == (event["name"] != "request")
            if not open_[key]:
                assert key not in outer
                outer.add(key)
            open_[key].append(event["name"])
        elif event["ph"] == "e":
            assert open_[key].pop() == event["name"]
    assert not any(open_.values())


def by(events: Events, phase: str, key: Callable[[dict[str, Any]], Any]) -> dict[Any, Events]:
    found: dict[Any, Events] = defaultdict(list)
    for event in events:
        if event["ph"] == phase:
            found[key(event)].append(event)
    return found


def written(run: RunResult, path: Path, **options: Any) -> Events:
    write_perfetto(run, path, **options)
    events = check_form(json.loads(path.read_text()))
    check_slices(events)
    check_lanes(events)
    return events


@pytest.fixture(scope="module")
def events(busy: RunResult, tmp_path_factory: pytest.TempPathFactory) -> Events:
    return written(busy, tmp_path_factory.mktemp("perfetto") / "run.json")


def test_steps_are_the_plans(busy: RunResult, events: Events) -> None:
    steps = [event for event in events if event.get("tid") == 1 and event["pid"] == 1 and event["ph"] in "Xi"]
    assert sum(event["args"]["steps"] for event in steps) == compute(busy).value("num_steps")
    assert sum(event["args"]["prefill_tokens"] for event in steps) == busy.logs[0].steps.prefill_tokens.sum()
    assert {event["name"].split(" x")[0] for event in steps} == {"prefill", "decode", "mixed"}
    for event in steps:
        assert event["args"]["limit"] == 256
        assert event["args"]["start_ns"] // 1000 == event["ts"]
    stretch = next(event for event in steps if " x" in event["name"])
    assert stretch["name"] == f"decode x{stretch['args']['steps']}"


def test_every_request_is_a_lane_and_its_phases_fill_it(busy: RunResult, events: Events) -> None:
    lanes = by(events, "b", lambda event: event["id2"]["local"])
    measured = Measured(busy)
    for row in np.flatnonzero(measured.served):
        outer, *phases = lanes[f"0.{row}"]
        assert (outer["name"], outer["args"]["id"], outer["args"]["end"]) == ("request", f"r{row}", "finished")
        spent = dict.fromkeys(("queued", "prefill", "decode", "preempted"), 0)
        for phase in phases:
            spent[phase["name"]] += phase["args"]["duration_ns"]
        assert sum(spent.values()) == outer["args"]["duration_ns"] == measured.e2e_ns[row]
        assert spent["preempted"] == busy.requests.requeue_ns[row]
        if not busy.requests.preemptions[row]:
            assert spent["queued"] + spent["prefill"] == measured.ttft_ns[row]


def test_the_scheduler_says_what_it_did_and_why(busy: RunResult, events: Events) -> None:
    metrics, told = compute(busy), by(events, "i", lambda event: event["name"].split(":")[0])
    assert len(told["preempted"]) == metrics.value("num_preemptions")
    assert sum(event["args"]["blocks"] for event in told["evicted"]) <= (metrics.value("evicted_blocks") or 0)
    rejected = [event for event in told["ended"] if event["args"]["what"] == "rejected"]
    assert [event["args"]["reason"] for event in rejected] == ["prompt > KV"] * 4
    assert any(event["args"]["reason"] for event in told["blocked"])


def test_counters_change_from_each_to_the_next(events: Events) -> None:
    counters = by(events, "C", lambda event: event["name"])
    assert set(counters) == {"KV blocks", "requests", "batch"}
    for series in counters.values():
        assert all(one["args"] != following["args"] for one, following in pairwise(series))
    assert max(event["args"]["used"] for event in counters["KV blocks"]) <= 80


def test_swapped_requests_are_on_the_host_until_they_are_back(busy_run: Runs, tmp_path: Path) -> None:
    swap = {"preemption": {"name": "newest", "parameters": {"mode": "swap"}}}
    run = busy_run(policies=swap, host_blocks=200)
    events = written(run, tmp_path / "run.json")
    assert max(event["args"].get("swapped", 0) for event in events if event["ph"] == "C") > 0
    assert min(event["args"].get("swapped", 0) for event in events if event["ph"] == "C") == 0
    spent = sum(e["args"]["duration_ns"] for e in events if e["ph"] == "b" and e["name"] == "swapped")
    assert spent == sum(run.requests.requeue_ns)


def test_who_is_kept_outside_and_who_ends_at_once(busy_run: Runs, tmp_path: Path) -> None:
    outside = written(busy_run(front={"max_in_flight": 5, "overflow": "queue"}), tmp_path / "queue.json")
    assert any(event["name"] == "outside" for event in outside if event["ph"] == "b")
    refused = written(busy_run(front={"max_in_flight": 5}), tmp_path / "reject.json")
    at_once = [event for event in refused if event["ph"] == "n" and event["name"] == "request"]
    assert {event["args"]["end"] for event in at_once} == {State.REJECTED.value}


@pytest.mark.parametrize("changes", [{"max_sim_time_s": 0.5}, {"engine": {"preset": "reference", "num_blocks": 80}}])
def test_other_runs_have_the_form_too(busy_run: Runs, tmp_path: Path, changes: dict[str, Any]) -> None:
    assert written(busy_run(**changes), tmp_path / "run.json")


def test_a_run_of_nothing(run_by_hand: Runs, tmp_path: Path) -> None:
    assert [event["ph"] for event in written(run_by_hand([]), tmp_path / "run.json")] == ["M"] * 6


# -- limits


def test_beyond_the_most_events_the_rest_is_sampled_and_says_so(busy_run: Runs, tmp_path: Path) -> None:
    run = busy_run(2000, rate_scale=0.3)
    full = written(run, tmp_path / "full.json")
    few: Events = []
    for most in (400, 2000):
        few = written(run, tmp_path / f"{most}.json", most_events=most)
        assert len(few) <= 1.3 * most < len(full)
        about = json.loads((tmp_path / f"{most}.json").read_text())["otherData"]
        assert any(note.startswith("requests: sampled 1 in ") for note in about["left_out"])
    steps = [event for event in few if event["pid"] == 1 and event.get("tid") == 1 and event["ph"] == "X"]
    assert sum(event["args"]["steps"] for event in steps) == compute(run).value("num_steps")


def test_extremes_survive_thinning(busy_run: Runs) -> None:
    run = busy_run(2000, rate_scale=0.3)

    def most_waiting(events: Events) -> int:
        return max(e["args"]["waiting"] for e in events if e["ph"] == "C" and e["name"] == "requests")

    assert most_waiting(timeline(run, most_events=3000).events) == most_waiting(timeline(run).events)


def test_a_window_has_what_was_there_then(busy: RunResult) -> None:
    events = timeline(busy, window=Window(200_000_000, 300_000_000)).events
    spans = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X"]
    assert spans
    assert all(start <= 300_000 and end >= 200_000 for start, end in spans)
    assert len(events) < len(timeline(busy).events)


# -- bytes


def test_the_same_run_gives_the_same_bytes_and_gz_is_the_same_text(busy: RunResult, tmp_path: Path) -> None:
    for name in ("a.json", "b.json", "a.json.gz", "b.json.gz"):
        write_perfetto(busy, tmp_path / name)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == (tmp_path / "a.json").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.json.gz", "b.json", "b.json.gz"]


def test_foreign_text_is_visible_and_short(busy_run: Runs, tmp_path: Path) -> None:
    hostile = "<script>\x1b[31m\u202e=cmd" + "x" * 300
    run = busy_run(hostile=hostile)
    events = written(replace(run, trace=replace(run.trace, name=hostile)), tmp_path / "run.json")
    texts = [value for event in events for value in event.get("args", {}).values() if isinstance(value, str)]
    assert any("<script>\\x1b[31m\\u202e=cmd" in text for text in texts)
    assert all(text.isprintable() and len(text) <= 200 for text in texts)
