"""`tokenwork compare`: engines, flags and policies on the same requests; or a simulated run beside a measured one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sim.commands.errors import wrong_use
from sim.commands.flags import shared_flags
from sim.commands.options import base_description as described
from sim.commands.options import check_out, choose_cost, from_json, given, policy, targets, value_of, workload
from sim.commands.progress import RunsDone
from sim.compare import run_plan
from sim.scenario import Policies
from sim.variants import ComparePlan, Point, make_plan, points, read_plan


def compare(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(help="Trace files or bundled traces; or a folder of `replay --out` and a benchmark's result."),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A comparison from a file (TOML or JSON), instead.")] = None,
    scenario: Annotated[Path | None, typer.Option(help="What all have in common (TOML or JSON).")] = None,
    engines: Annotated[
        str | None, typer.Option(help="Presets, with commas; the first is what is compared with.")
    ] = None,
    vary: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE,VALUE...: an engine's flag, a policy, a scenario's key.")
    ] = None,
    rate_scale: Annotated[str | None, typer.Option(help="Divide arrival gaps by each of these: 1,2,3.")] = None,
    seeds: Annotated[int | None, typer.Option(help="So many replications: synthetic workloads drawn anew.")] = None,
    blocks: Annotated[int | None, typer.Option(help="So many replications: pieces of each run.")] = None,
    profile: Annotated[str | None, typer.Option(help="Cost profile: a name, or a path ending in .json.")] = None,
    cost: Annotated[str | None, typer.Option(help="Another cost model as JSON.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N arrivals.")] = None,
    max_tokens_from: Annotated[
        str | None, typer.Option(help="Where a trace names no max_tokens: model_len | fixed:N | factor:F | true.")
    ] = None,
    host_blocks: Annotated[
        int | None, typer.Option(help="KV blocks on the host, for policies that swap (newest:mode=swap, cheaper).")
    ] = None,
    slo: Annotated[list[str] | None, typer.Option(help="Target in seconds: ttft=2, tpot=0.05 or e2e=30.")] = None,
    format: Annotated[str | None, typer.Option(help="Trace format; by default the content decides.")] = None,
    columns: Annotated[str | None, typer.Option(help="Columns of a generic trace as JSON.")] = None,
    on_bad_row: Annotated[str | None, typer.Option(help="error | skip.")] = None,
    sort: Annotated[bool, typer.Option("--sort", help="Sort rows that are out of order.")] = False,
    jobs: Annotated[int, typer.Option(help="Processes; -1 = one per core.")] = -1,
    allow_plugins: Annotated[
        bool, typer.Option("--allow-plugins", help="Let --file and --scenario run policies from Python files.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write compare.html, .md, .json and cells.parquet there.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --out replace a folder.")] = False,
    engine_flag: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE: a flag of every engine that has it; --NAME VALUE as well.")
    ] = None,
) -> int:
    """Compare variants. Example: tokenwork compare chat-1k --vary max_num_seqs=16,64 --slo ttft=1 --out comparison"""
    if out is not None:
        check_out(out, force)
    names = inputs or []
    if len(names) == 2 and Path(names[0]).is_dir():
        if any((out, file, scenario, engines, vary, engine_flag)):
            raise wrong_use("a run beside a benchmark's result takes no options: the result is on stdout")
        return _beside(Path(names[0]), Path(names[1]))
    if jobs == 0 or jobs < -1:
        raise wrong_use(f"--jobs must be >= 1, or -1 for one per core, got {jobs}")
    if file is not None:
        if names or scenario or engines or vary or engine_flag:
            raise wrong_use("--file says itself what is compared: no traces, --scenario, --engines, --vary or flags")
        plan = read_plan(file)
        return _run(plan, points(plan, file=file, allow_plugins=allow_plugins), jobs, out)
    description = described(scenario, allow_plugins)
    description |= given({"limit": limit, "max_tokens_from": max_tokens_from, "host_blocks": host_blocks})
    choose_cost(description, profile, cost)
    description.setdefault("slo", {}).update(targets(slo or []))
    reading = {
        "format": format,
        "columns": from_json("--columns", columns),
        "on_bad_row": on_bad_row,
        "sort": sort or None,
    }
    workloads = [workload(name, reading) for name in names]
    if not workloads and "workload" not in description:
        raise wrong_use("give a TRACE, a --scenario or a --file (a bundled trace: tokenwork compare chat-1k ...)")
    varied = dict(_varied(text) for text in vary or [])
    presets = [name.strip() for name in (engines or "").split(",") if name.strip()]
    plan = make_plan(
        {
            "scenario": description,
            "variants": shared_flags(description.get("engine"), presets, engine_flag or []),
            "vary": varied,
            "workloads": workloads if len(workloads) > 1 else (),
            "rate_scales": _numbers("--rate-scale", rate_scale or "1"),
            "seeds": list(range(_at_least_one("--seeds", seeds))) if seeds is not None else (),
            "blocks": blocks,
        }
    )
    if len(workloads) == 1:
        plan.scenario["workload"] = workloads[0]
    return _run(plan, points(plan), jobs, out)


def _run(plan: ComparePlan, runs: list[Point], jobs: int, out: Path | None) -> int:
    from sim.results.comparison.console import comparison_text

    if len({point.key.variant for point in runs}) < 2:
        raise wrong_use("there is one variant only: nothing to compare (--engines a,b, or --vary NAME=VALUE,VALUE)")
    with RunsDone(len(runs)) as progress:
        comparison = run_plan(plan, runs, jobs=jobs, progress=progress.update)
    if not comparison.cells:
        raise KeyboardInterrupt
    _print(comparison_text(comparison))
    if out is not None:
        comparison.report(out)
        print(f"report: {out / 'compare.html'}", file=sys.stderr)
    return 130 if comparison.num_missing else 0


def _beside(run: Path, measured: Path) -> int:
    from sim.results.bench import BadBench
    from sim.results.beside import NotARun, beside_text

    try:
        _print(beside_text(run, measured))
    except (NotARun, BadBench) as error:
        raise wrong_use(str(error)) from None
    return 0


def _print(text: str) -> None:
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:  # as in `| head -3`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# -- what the options mean


def _varied(text: str) -> tuple[str, tuple[Any, ...]]:
    """`max_num_seqs=64,128` -> name and values; a policy's may have parameters: `order=fcfs,aging:step_s=2`."""
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise wrong_use(f"--vary {text}: expected NAME=VALUE,VALUE,...")
    key = name.strip().replace("-", "_")
    each = [value.strip() for value in values.split(",")]
    if key.removeprefix("policies.") in Policies.model_fields:
        return key, tuple(policy(key, value) for value in each)
    return key, tuple(value_of(value) for value in each)


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(each) for each in text.split(",")]
    except ValueError:
        raise wrong_use(f"{option} {text}: expected numbers with commas between them") from None


def _at_least_one(option: str, value: int) -> int:
    if value < 1:
        raise wrong_use(f"{option} must be >= 1, got {value}")
    return value
