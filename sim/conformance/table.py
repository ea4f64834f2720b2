"""What the recordings show, as a Markdown table: one row per engine and version, and below it what they do not show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from sim.conformance.compare import Comparison
from sim.conformance.recorder import RECORDERS, Recorder
from sim.conformance.recording import Scenario

HEADER = "| engine | version | scenarios | steps compared | differences |\n|---|---|---:|---:|---:|"

Results = Sequence[tuple[Scenario, Comparison]]


def markdown_table(results: Results, without_recorder: Counter[str]) -> str:
    """`without_recorder`: scenarios of engines that have no recorder, by engine."""
    groups: dict[tuple[str, str], list[tuple[Scenario, Comparison]]] = {}
    for scenario, comparison in results:
        groups.setdefault((scenario.engine, scenario.version), []).append((scenario, comparison))
    rows = [_row(engine, version, group) for (engine, version), group in sorted(groups.items())]
    notes = [note for engine in sorted({engine for engine, _ in groups}) for note in _notes(engine, results)]
    if without_recorder:
        left = ", ".join(f"{engine} ({_scenarios(number)})" for engine, number in sorted(without_recorder.items()))
        notes.append(f"- Recorded, engine not built yet: {left}.")
    return "\n".join([HEADER, *rows, *(["", *notes] if notes else [])])


def _row(engine: str, version: str, group: Results) -> str:
    compared = [comparison for _, comparison in group if comparison.not_covered is None]
    steps = sum(comparison.steps for comparison in compared)
    different = sum(comparison.difference is not None for comparison in compared)
    scenarios = str(len(group)) if len(compared) == len(group) else f"{len(compared)} of {len(group)}"
    return f"| `{engine}` | {version} | {scenarios} | {steps:,} | {different} |"


def _notes(engine: str, results: Results) -> Iterator[str]:
    recorder: Recorder = RECORDERS.make(engine)
    mine = [(scenario, comparison) for scenario, comparison in results if scenario.engine == engine]
    missing = Counter(comparison.not_covered for _, comparison in mine if comparison.not_covered is not None)
    if missing:
        parts = ", ".join(f"{what} ({_scenarios(number)})" for what, number in sorted(missing.items()))
        yield f"- `{engine}`, not covered: {parts}."
    for scenario, comparison in mine:
        if comparison.difference is not None:
            yield f"- `{engine}`, DIFFERS: {scenario.name} at {comparison.difference}."
        for note in comparison.notes:
            yield f"- `{engine}`, not required: {scenario.name}: {note}."
    if recorder.unverified:
        yield f"- `{engine}`, no recording shows: {'; '.join(recorder.unverified)}."


def _scenarios(number: int) -> str:
    return f"{number} scenario" + ("s" if number != 1 else "")
