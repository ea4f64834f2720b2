"""`tokenwork conformance`: do our engines take the decisions that real ones were recorded taking?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sim.commands.errors import Failure, wrong_use
from sim.conformance import BadRecording, Comparison, NotCovered, check, emit, engine_of, load
from sim.engines import VllmV1

DEFAULT_DIR = Path(__file__).parents[2] / "tests" / "golden"


def conformance(
    directory: Annotated[
        Path, typer.Argument(help="Folder of recordings (*.json, *.json.gz), searched deeply.", show_default=False)
    ] = DEFAULT_DIR,
    engine: Annotated[str | None, typer.Option(help="Only recordings of this engine.")] = None,
    emit_to: Annotated[
        Path | None, typer.Option("--emit", help="Also write our own logs here, in the same form.")
    ] = None,
) -> None:
    """Rebuild each recording from its inputs alone and compare decisions step by step."""
    if not directory.is_dir():
        raise wrong_use(f"no folder of recordings at {directory}: give one, or run from a checkout of the repository")
    if emit_to is not None and emit_to.exists():
        raise wrong_use(f"--emit {emit_to}: exists already")
    results = []
    for path in sorted(p for p in directory.rglob("*") if p.name.endswith((".json", ".json.gz"))):
        result = _check(path, engine, emit_to)
        if result is not None:
            results.append(result)
            print(_line(result))
    if not results:
        raise wrong_use(f"no recordings in {directory}" + (f" of engine {engine}" if engine else ""))
    _summary(results)


def _check(path: Path, engine: str | None, emit_to: Path | None) -> Comparison | None:
    """None for files that are no recordings (or of another engine)."""
    try:
        recording = load(path)
    except BadRecording as error:
        raise Failure(str(error), 1) from None
    found = engine_of(recording)
    if found is None or (engine is not None and engine != found):
        return None
    if emit_to is not None:
        _emit(path, recording, emit_to)
    return check(path)


def _emit(path: Path, recording: dict[str, object], emit_to: Path) -> None:
    if engine_of(recording) != VllmV1.preset:
        return
    try:
        ours = emit(recording)
    except NotCovered:
        return
    emit_to.mkdir(parents=True, exist_ok=True)
    name = path.name.removesuffix(".gz").removesuffix(".json")
    (emit_to / f"{name}.json").write_text(json.dumps(ours, separators=(",", ":")) + "\n", encoding="utf-8")


def _line(result: Comparison) -> str:
    where = f"{result.engine:<10} {result.scenario:<34}"
    if result.not_covered is not None:
        return f"{where} not covered: {result.not_covered}"
    if result.difference is not None:
        return f"{where} {result.steps:>6} steps, DIFFERS at {result.difference}"
    return f"{where} {result.steps:>6} steps, no difference"


def _summary(results: list[Comparison]) -> None:
    compared = [result for result in results if result.not_covered is None]
    different = sum(result.difference is not None for result in compared)
    steps = sum(result.steps for result in compared)
    print(
        f"{len(compared)} recorded scenarios compared, {steps} steps: {different} differ; "
        f"{len(results) - len(compared)} not covered"
    )
    if different:
        raise typer.Exit(1)
