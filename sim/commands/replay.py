"""`tokenwork replay`: a trace through an engine; the result on stdout, a report in a folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from sim.commands.errors import wrong_use
from sim.commands.files import Files
from sim.commands.options import (
    base_description,
    choose_cost,
    choose_engine,
    from_json,
    given,
    json_or_file,
    policy,
    targets,
    workload,
)
from sim.commands.progress import Progress
from sim.driver import INTERRUPTED
from sim.replay import replay as run_scenario
from sim.scenario import Scenario, make_scenario


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
    force: Annotated[bool, typer.Option("--force", help="Let --out and --perfetto replace what is there.")] = False,
    perfetto: Annotated[
        Path | None, typer.Option(help="Write steps and requests for ui.perfetto.dev: FILE.json or FILE.json.gz.")
    ] = None,
    perfetto_window: Annotated[str | None, typer.Option(help="Of the run's seconds, only these: 100:160.")] = None,
    engine_flag: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE: a flag of the engine; --NAME VALUE does the same.")
    ] = None,
) -> int:
    """Replay a trace. Example: tokenwork replay chat-1k --max-num-seqs 128 --slo ttft=2 --out report"""
    files = Files(out, perfetto, force=force, window=perfetto_window)
    files.check()
    description = base_description(scenario, allow_plugins)
    reading = {
        "format": format,
        "columns": from_json("--columns", columns),
        "on_bad_row": on_bad_row,
        "sort": sort or None,
    }
    if trace is not None:
        description["workload"] = workload(trace, reading)
    elif any(value is not None for value in reading.values()):
        description.setdefault("workload", {}).update(given(reading))
    description |= given(
        {
            "host_blocks": host_blocks,
            "limit": limit,
            "rate_scale": rate_scale,
            "max_tokens_from": max_tokens_from,
            "capacity_events": json_or_file("--capacity-events", capacity_events),
            "max_sim_time_s": max_sim_time,
            "max_steps": max_steps,
            "seed": seed,
        }
    )
    front = {"max_in_flight": max_in_flight, "max_waiting": max_waiting, "max_waiting_tokens": max_waiting_tokens}
    if limits := given({**front, "overflow": overflow}):
        description["front"] = {**(description.get("front") or {}), **limits}
    choose_cost(description, profile, cost)
    choose_engine(description, engine, engine_flag or [])
    policies = {"order": order, "admission": admission, "budget": budget, "preemption": preemption}
    policies["eviction"] = eviction
    description.setdefault("policies", {}).update(
        {kind: policy(kind, text) for kind, text in policies.items() if text is not None}
    )
    description.setdefault("slo", {}).update(targets(slo or []))
    if "workload" not in description:
        raise wrong_use("give a TRACE or a --scenario (a bundled trace: tokenwork replay chat-1k)")
    return _run(make_scenario(description, place="replay"), files)


def _run(scenario: Scenario, files: Files) -> int:
    from sim.results.console import print_result

    with Progress() as progress:
        result = run_scenario(scenario, progress=progress.update)
    try:
        print_result(result)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # as in `| head -3`, where rich would end the program: the run is as good
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    progress.summary(result)
    files.write(result)
    if result.outcome.stalled is not None:
        return 1
    return 130 if result.outcome.stopped == INTERRUPTED else 0
