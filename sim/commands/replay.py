"""`tokenwork replay`: a trace through an engine; the result on stdout, a report in a folder."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sim.commands.errors import wrong_use
from sim.commands.flags import engine_flags
from sim.commands.progress import Progress
from sim.driver import INTERRUPTED
from sim.replay import replay as run_scenario
from sim.scenario import Scenario, make_scenario, read_scenario
from workloads.bundled import bundled_names


def replay(
    trace: Annotated[
        str | None, typer.Argument(help="A trace file, or the name of a bundled trace (tokenwork list trace).")
    ] = None,
    scenario: Annotated[
        Path | None, typer.Option(help="A scenario file (TOML or JSON); options given beside it win.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="The preset; its own flags follow under its names.")] = None,
    profile: Annotated[str | None, typer.Option(help="Cost profile: a name, or a path ending in .json.")] = None,
    cost: Annotated[
        str | None, typer.Option(help='Another cost model as JSON: {"kind": "linear", "a_s": 0.01, ...}.')
    ] = None,
    order: Annotated[
        str | None, typer.Option(help="Order policy: NAME or FILE.py:CLASS, then [:parameter=value...].")
    ] = None,
    admission: Annotated[str | None, typer.Option(help="Admission policy.")] = None,
    budget: Annotated[str | None, typer.Option(help="Budget policy.")] = None,
    preemption: Annotated[str | None, typer.Option(help="Preemption policy.")] = None,
    eviction: Annotated[str | None, typer.Option(help="Eviction policy of a tree cache.")] = None,
    max_in_flight: Annotated[
        int | None, typer.Option(help="Requests inside the engine at most: waiting, running, swapped.")
    ] = None,
    max_waiting: Annotated[int | None, typer.Option(help="Of these, waiting ones at most.")] = None,
    max_waiting_tokens: Annotated[int | None, typer.Option(help="Their prompt tokens at most.")] = None,
    overflow: Annotated[str | None, typer.Option(help="Who finds no room: reject | queue (outside).")] = None,
    allow_plugins: Annotated[
        bool, typer.Option("--allow-plugins", help="Let the --scenario file run policies from Python files.")
    ] = False,
    host_blocks: Annotated[int | None, typer.Option(help="Blocks on the host, for policies that swap.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N arrivals.")] = None,
    rate_scale: Annotated[float | None, typer.Option(help="Divide arrival gaps by this.")] = None,
    max_tokens_from: Annotated[
        str | None, typer.Option(help="Where the trace names no max_tokens: model_len | fixed:N | factor:F | true.")
    ] = None,
    slo: Annotated[list[str] | None, typer.Option(help="Target in seconds: ttft=2, tpot=0.05 or e2e=30.")] = None,
    format: Annotated[str | None, typer.Option(help="Trace format; by default the content decides.")] = None,
    columns: Annotated[str | None, typer.Option(help="Columns of a generic trace as JSON.")] = None,
    on_bad_row: Annotated[str | None, typer.Option(help="error | skip.")] = None,
    sort: Annotated[bool, typer.Option("--sort", help="Sort rows that are out of order.")] = False,
    capacity_events: Annotated[
        str | None, typer.Option(help="Usable blocks from when on: '[[10, 500], [20, 1000]]', or a JSON file of that.")
    ] = None,
    max_sim_time: Annotated[float | None, typer.Option(help="Stop at this simulated second.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Stop after so many engine steps.")] = None,
    seed: Annotated[int | None, typer.Option(help="For what is drawn at random.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write report, metrics and tables into this new folder.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --out replace a folder.")] = False,
    engine_flag: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE: a flag of the engine; --NAME VALUE does the same.")
    ] = None,
) -> int:
    """Replay a trace. Example: tokenwork replay chat-1k --max-num-seqs 128 --slo ttft=2 --out report"""
    if out is not None:
        _check_out(out, force)
    description = _base(scenario, allow_plugins)
    reading = {"format": format, "columns": _json("--columns", columns), "on_bad_row": on_bad_row, "sort": sort or None}
    if trace is not None:
        description["workload"] = _workload(trace, reading)
    elif any(value is not None for value in reading.values()):
        description.setdefault("workload", {}).update(_given(reading))
    description |= _given(
        {
            "host_blocks": host_blocks,
            "limit": limit,
            "rate_scale": rate_scale,
            "max_tokens_from": max_tokens_from,
            "capacity_events": _json_or_file("--capacity-events", capacity_events),
            "max_sim_time_s": max_sim_time,
            "max_steps": max_steps,
            "seed": seed,
        }
    )
    front = {"max_in_flight": max_in_flight, "max_waiting": max_waiting, "max_waiting_tokens": max_waiting_tokens}
    if given := _given({**front, "overflow": overflow}):
        description["front"] = {**(description.get("front") or {}), **given}
    _choose_cost(description, profile, cost)
    _choose_engine(description, engine, engine_flag or [])
    policies = {"order": order, "admission": admission, "budget": budget, "preemption": preemption}
    policies["eviction"] = eviction
    description.setdefault("policies", {}).update(
        {kind: _policy(kind, text) for kind, text in policies.items() if text is not None}
    )
    description.setdefault("slo", {}).update(_targets(slo or []))
    if "workload" not in description:
        raise wrong_use("give a TRACE or a --scenario (a bundled trace: tokenwork replay chat-1k)")
    return _run(make_scenario(description, place="replay"), out)


def _check_out(out: Path, force: bool) -> None:
    """Before anything runs: may the report go there?"""
    from sim.results.report import why_not

    why = why_not(out, force=force)
    if why is not None:
        raise wrong_use(f"--out {out}: {why}")
    if out.absolute().parent.exists() and not os.access(out.absolute().parent, os.W_OK):
        raise wrong_use(f"--out {out}: {out.absolute().parent} is not writable")


def _run(scenario: Scenario, out: Path | None) -> int:
    from sim.results.console import print_result

    with Progress() as progress:
        result = run_scenario(scenario, progress=progress.update)
    try:
        print_result(result)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # as in `| head -3`, where rich would end the program: the run is as good
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    progress.summary(result)
    if out is not None:
        from sim.results.report import write_report

        write_report(result, out)
        print(f"report: {out / 'report.html'}", file=sys.stderr)
    if result.outcome.stalled is not None:
        return 1
    return 130 if result.outcome.stopped == INTERRUPTED else 0


def _base(path: Path | None, allow_plugins: bool) -> dict[str, Any]:
    if path is None:
        return {}
    return read_scenario(path, allow_plugins=allow_plugins).model_dump(mode="json", exclude_unset=True)


def _workload(trace: str, reading: dict[str, Any]) -> dict[str, Any]:
    if trace in bundled_names() and not Path(trace).exists():
        if _given(reading):
            raise wrong_use(f"--{next(iter(_given(reading))).replace('_', '-')} is for trace files, not bundled traces")
        return {"kind": "bundled", "name": trace}
    return {"kind": "trace", "path": trace, **_given(reading)}


def _choose_cost(description: dict[str, Any], profile: str | None, cost: str | None) -> None:
    if profile is not None and cost is not None:
        raise wrong_use("--profile and --cost exclude each other")
    if profile is not None:
        description["cost"] = {"kind": "profile", "name": profile}
    elif cost is not None:
        description["cost"] = _json("--cost", cost)


def _choose_engine(description: dict[str, Any], engine: str | None, arguments: list[str]) -> None:
    """Engine flags go on top of a scenario's, unless another preset is asked for."""
    given = description.get("engine", {})
    preset = engine or given.get("preset", "vllm-v1")
    kept = given if preset == given.get("preset") else {}
    description["engine"] = {**kept, "preset": preset, **engine_flags(preset, arguments)}


def _policy(kind: str, text: str) -> dict[str, Any]:
    """`optimistic:watermark_blocks=3` or `./mine.py:Mine:alpha=1` -> name and parameters (JSON where they can be)."""
    file, in_file, rest = text.rpartition(".py:")
    name, *pairs = (rest if in_file else text).split(":")
    name = file + in_file + name
    parameters = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise wrong_use(f"--{kind} {text}: expected parameter=value, got {pair!r}")
        parameters[key] = _value(value)
    return {"name": name, "parameters": parameters}


def _targets(texts: list[str]) -> dict[str, float]:
    targets: dict[str, float] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if key not in ("ttft", "tpot", "e2e") or not equals:
            raise wrong_use(f"--slo {text}: must be ttft=SECONDS, tpot=SECONDS or e2e=SECONDS")
        if f"{key}_s" in targets:
            raise wrong_use(f"--slo {text}: {key} was given before")
        try:
            targets[f"{key}_s"] = float(value)
        except ValueError:
            raise wrong_use(f"--slo {text}: {value!r} is not a number of seconds") from None
    return targets


def _json(option: str, text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise wrong_use(f"{option}: not JSON: {error}") from None


def _json_or_file(option: str, text: str | None) -> Any:
    """Text that begins like a list is one, any other is the name of a file."""
    if text is None or text.lstrip().startswith("["):
        return _json(option, text)
    return _json(f"{option} {text}", Path(text).read_text(encoding="utf-8"))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
