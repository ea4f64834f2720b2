"""The file: all tracks within a number of events that a browser can show, and a word where something is left out."""

from __future__ import annotations

import gzip
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.results.measure import Measured
from sim.results.perfetto import lanes, tracks
from sim.results.perfetto.events import Event, Window
from sim.results.run import RunResult
from sim.results.wording import visible

MOST_EVENTS = 250_000
"""Of all tracks together: about 40 MB of JSON, 3 MB gzipped."""

EVERYTHING = Window(-(1 << 62), 1 << 62)


@dataclass(frozen=True, slots=True)
class Timeline:
    events: list[Event]
    left_out: tuple[str, ...]
    """What was merged or sampled, in words."""


def timeline(run: RunResult | Measured, *, window: Window = EVERYTHING, most_events: int = MOST_EVENTS) -> Timeline:
    """Half of the events at most for steps, a fifth each for counters and instants, and what is left for requests."""
    measured = run if isinstance(run, Measured) else Measured(run)
    engines = measured.result.engines
    events, notes = [], []
    share = most_events // len(engines)
    for engine, (facts, plans) in enumerate(zip(engines, measured.plans, strict=True)):
        events += tracks.names(engine, facts.name) + lanes.names(engine, facts.name)
        slices, together = tracks.step_slices(plans, engine, window, share // 2)
        events += slices + tracks.counters(measured, engine, window, share // 5)
        if together > 1:
            notes.append(f"engine {engine}: steps: {together} plans a slice")
    instants, one_in = tracks.scheduler_instants(measured, window, most_events // 5)
    if one_in > 1:
        notes.append(f"what the scheduler did: sampled 1 in {one_in}")
    events += instants
    sampled = lanes.sample(measured, window, most_events - len(events))
    if sampled.one_in > 1:
        notes.append(f"requests: sampled 1 in {sampled.one_in}, and those that were lost, gave way or missed a target")
    events += lanes.lanes(measured, sampled.rows)
    return Timeline(events, tuple(notes))


def write_perfetto(
    run: RunResult | Measured, path: Path, *, window: Window = EVERYTHING, most_events: int = MOST_EVENTS
) -> Timeline:
    """Write the run for ui.perfetto.dev; a name that ends in .gz is compressed. The same bytes for the same run.

    Nobody ever sees half of the file. Raises OSError.
    """
    measured = run if isinstance(run, Measured) else Measured(run)
    found = timeline(measured, window=window, most_events=most_events)
    text = "".join(_lines(found, _about(measured, found))).encode()
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        new.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
    return found


def _about(measured: Measured, found: Timeline) -> dict[str, Any]:
    run = measured.result
    return {
        "tool": "tokenwork",
        "trace": visible(run.trace.name),
        "trace_sha256": run.trace.sha256,
        "engines": [facts.name for facts in run.engines],
        "profile": visible(run.profile_name),
        "seed": run.scenario.get("seed", 0),
        "left_out": list(found.left_out),
    }


def _lines(found: Timeline, about: dict[str, Any]) -> Iterator[str]:
    """One event a line."""
    dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    yield '{"displayTimeUnit":"ms","otherData":' + dumps(about) + ',"traceEvents":[\n'
    yield ",\n".join(_encoded(found.events, dumps))
    yield "\n]}\n"


def _encoded(events: Iterable[Event], dumps: Any) -> Iterator[str]:
    return (dumps(event) for event in events)
