"""Two logs of one scenario beside each other: how far they agree, and the first difference in words."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sim.conformance.recorder import RECORDERS, Log, NotCovered, Recorder
from sim.conformance.recording import Scenario

Pairs = list[tuple[dict[str, Any], dict[str, Any]]]
"""(recorded, ours), step by step."""

_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came out of one scenario."""

    steps: int
    """Steps compared, up to and including the first that differs."""
    difference: str | None
    """`step 12: free_after is 7, recorded 8`; None if all agree."""
    notes: tuple[str, ...] = ()
    """Differences in those steps that are told and not required to be none, one text per field."""
    not_covered: str | None = None
    """What the scenario needs that is not built."""


def check(scenario: Scenario) -> Comparison:
    """Compare one scenario with what its engine's recorder makes of the inputs. Raises UnknownName without one."""
    recorder: Recorder = RECORDERS.make(scenario.engine)
    try:
        ours = recorder.emit(scenario.input)
    except NotCovered as what:
        return Comparison(0, None, not_covered=str(what))
    return compare(recorder, scenario.output, ours)


def compare(recorder: Recorder, recorded: Log, ours: Log) -> Comparison:
    """Ours is taken as JSON would hold it: tuples are lists there, and all keys text."""
    theirs, mine = recorder.comparable(recorded), recorder.comparable(json.loads(json.dumps(ours)))
    their_steps, my_steps = theirs.get("steps", []), mine.get("steps", [])
    pairs: Pairs = list(zip(their_steps, my_steps, strict=False))
    for number, (expected, got) in enumerate(pairs, start=1):
        difference = _first(recorder.compared, expected, got)
        if difference is not None:
            notes = _notes(recorder.printed, pairs[:number])
            return Comparison(number, f"step {_label(expected, number - 1)}: {difference}", notes)
    notes = _notes(recorder.printed, pairs)
    if len(their_steps) != len(my_steps):
        return Comparison(len(pairs), f"{len(my_steps)} steps, recorded {len(their_steps)}", notes)
    beside = tuple(note for name in recorder.printed if (note := _first([name], theirs, mine)) is not None)
    return Comparison(len(pairs), _first(recorder.compared, theirs, mine), notes + beside)


def _notes(printed: Iterable[str], pairs: Pairs) -> tuple[str, ...]:
    """`budget0 differs in 3 of 11 steps, first at step 2: budget0.rem is 5, recorded 6`."""
    notes = []
    for name in printed:
        found = [(at, text) for at, pair in enumerate(pairs) if (text := _first([name], *pair)) is not None]
        if found:
            at, text = found[0]
            step = _label(pairs[at][0], at)
            notes.append(f"{name} differs in {len(found)} of {len(pairs)} steps, first at step {step}: {text}")
    return tuple(notes)


def _label(step: dict[str, Any], at: int) -> Any:
    return step.get("step", at)


def _first(names: Iterable[str], expected: dict[str, Any], got: dict[str, Any]) -> str | None:
    """The first of these fields that differs, in words."""
    for name in names:
        text = _difference(name, expected.get(name, _ABSENT), got.get(name, _ABSENT))
        if text is not None:
            return text
    return None


def _difference(place: str, expected: Any, got: Any) -> str | None:
    """The innermost place where two values differ; lists of plain values are shown whole."""
    if expected == got:
        return None
    inner: Iterable[tuple[str, Any, Any]] = ()
    if isinstance(expected, dict) and isinstance(got, dict) and expected.keys() == got.keys():
        inner = ((f"{place}.{key}", expected[key], got[key]) for key in expected)
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        pairs = enumerate(zip(expected, got, strict=True))
        inner = ((f"{place}[{at}]", *pair) for at, pair in pairs if all(isinstance(each, dict) for each in pair))
    for part in inner:
        text = _difference(*part)
        if text is not None:
            return text
    ours = "absent" if got is _ABSENT else _short(got)
    return f"{place} is {ours}, " + ("not recorded" if expected is _ABSENT else f"recorded {_short(expected)}")


def _short(value: Any, limit: int = 300) -> str:
    text = json.dumps(value)
    return text if len(text) <= limit else text[:limit] + " ..."
