"""`tokenwork conformance`: do our engines take the decisions that real ones were recorded taking?"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from sim.commands.errors import Failure, wrong_use
from sim.conformance import (
    RECORDERS,
    BadRecording,
    Comparison,
    Log,
    NotCovered,
    Recording,
    Scenario,
    check,
    load_folder,
)
from sim.conformance.table import markdown_table

DEFAULT_DIR = Path(__file__).parents[2] / "tests" / "golden"

Results = list[tuple[Scenario, Comparison]]


def conformance(
    directory: Annotated[
        Path, typer.Argument(help="Folder of recordings (*.json, *.json.gz), searched deeply.", show_default=False)
    ] = DEFAULT_DIR,
    engine: Annotated[str | None, typer.Option(help="Only recordings of this engine.")] = None,
    emit_to: Annotated[
        Path | None, typer.Option("--emit", help="Also write our own logs here, in the same form.")
    ] = None,
    table: Annotated[bool, typer.Option("--table", help="Print a Markdown table, one row per engine.")] = False,
) -> None:
    """Rebuild each recording from its inputs alone and compare decisions step by step."""
    if not directory.is_dir():
        raise wrong_use(f"no folder of recordings at {directory}: give one, or run from a checkout of the repository")
    if emit_to is not None and emit_to.exists():
        raise wrong_use(f"--emit {emit_to}: exists already")
    recordings = _recordings(directory, engine)
    if not recordings:
        raise wrong_use(f"no recordings in {directory}" + (f" of engine {engine}" if engine else ""))
    results: Results = []
    without_recorder: Counter[str] = Counter()
    for recording in recordings:
        if recording.engine in RECORDERS.names():
            compared = [(scenario, check(scenario)) for scenario in recording.scenarios]
            results += compared
            lines = [_line(scenario, comparison) for scenario, comparison in compared]
            if emit_to is not None:
                _emit(recording, emit_to)
        else:
            number = len(recording.scenarios)
            without_recorder[recording.engine] += number
            lines = [
                f"{_where(recording.engine, recording.name)} not covered: {number} scenarios, engine not built yet"
            ]
        if not table:
            print("\n".join(lines))
    print(markdown_table(results, without_recorder) if table else _summary(results, without_recorder))
    if any(comparison.difference is not None for _, comparison in results):
        raise typer.Exit(1)


def _recordings(directory: Path, engine: str | None) -> list[Recording]:
    try:
        return [recording for recording in load_folder(directory) if engine in (None, recording.engine)]
    except BadRecording as error:
        raise Failure(str(error), 1) from None


def _emit(recording: Recording, emit_to: Path) -> None:
    """Write our own file of the same form; scenarios that are not covered are left out."""
    recorder = RECORDERS.make(recording.engine)
    outputs: dict[str, Log] = {}
    for scenario in recording.scenarios:
        with contextlib.suppress(NotCovered):
            outputs[scenario.name] = recorder.emit(scenario.input)
    if outputs:
        emit_to.mkdir(parents=True, exist_ok=True)
        text = json.dumps(recording.rewritten(outputs), separators=(",", ":"))
        (emit_to / f"{recording.name}.json").write_text(text + "\n", encoding="utf-8")


def _where(engine: str, name: str) -> str:
    return f"{engine:<20} {name:<28}"


def _line(scenario: Scenario, comparison: Comparison) -> str:
    where = _where(scenario.engine, scenario.name)
    if comparison.not_covered is not None:
        return f"{where} not covered: {comparison.not_covered}"
    found = "no difference" if comparison.difference is None else f"DIFFERS at {comparison.difference}"
    notes = "".join(f"\n    not required: {note}" for note in comparison.notes)
    return f"{where} {comparison.steps:>6} steps, {found}{notes}"


def _summary(results: Results, without_recorder: Counter[str]) -> str:
    compared = [comparison for _, comparison in results if comparison.not_covered is None]
    different = sum(comparison.difference is not None for comparison in compared)
    steps = sum(comparison.steps for comparison in compared)
    not_covered = len(results) - len(compared) + without_recorder.total()
    return f"{len(compared)} recorded scenarios compared, {steps} steps: {different} differ; {not_covered} not covered"
