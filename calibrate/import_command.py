"""`tokenwork calibrate import`: a profile from measurements that somebody else's program has made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from calibrate.aggregate_log import aggregate_features, read_aggregate_log
from calibrate.bench_result import profile_from_bench
from calibrate.compose import StepComposer
from calibrate.cross_check import cross_check, cross_check_text
from calibrate.engine_runs import read_engine_runs
from calibrate.evidence import EvidenceError
from calibrate.fit_report import fit_report
from calibrate.fit_steps import fit_steps
from calibrate.priors import prior_weights
from calibrate.profile_from_steps import profile_from_steps
from calibrate.profile_from_tables import profile_from_tables, table_provenance
from calibrate.profile_text import profile_text
from calibrate.public_tables import read_tables
from calibrate.sources import detect_all
from costmodel.config import RooflineConfig
from costmodel.profile import Profile
from costmodel.specs import device_spec, model_spec
from sim.commands.errors import Failure, wrong_use

TABLES_NAME, TABLES_MODEL, TABLES_DEVICE = "h100-llama-3.1-8b-bf16", "llama-3.1-8b", "h100-sxm"


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the command line says beside the paths; None where it does not."""

    name: str | None
    model: str | None
    device: str | None
    tensor_parallel: int
    experiment: str | None
    cross_check_file: Path | None


def import_measurements(
    source: Annotated[
        list[Path],
        typer.Argument(
            help="A directory of aiconfigurator's database (one engine version); step logs of an engine "
            "(NAME.steps.jsonl[.gz] with NAME.requests.jsonl[.gz], or a directory of them); a CSV with sums per step; "
            "or a result of vllm bench serve (.json)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Where the profile goes.")],
    name: Annotated[str | None, typer.Option(help="The profile's name.")] = None,
    model: Annotated[str | None, typer.Option(help="A name in costmodel/specs.py.")] = None,
    device: Annotated[str | None, typer.Option(help="A name in costmodel/specs.py.")] = None,
    tensor_parallel: Annotated[int, typer.Option(min=1, help="GPUs per engine, for a bench result.")] = 1,
    experiment: Annotated[str | None, typer.Option(help="Which experiment of a CSV that has several.")] = None,
    cross_check_file: Annotated[Path | None, typer.Option("--cross-check", help="layers.csv[.gz] to compare.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Fit a token-weights profile to measurements of others; what they are is found by looking into them.

    Prints how wrong the fit is, by region. With tables, and a layers file of LLMServingSim v0, also how that differs.
    """
    if out.exists() and not force:
        raise wrong_use(f"--out {out}: exists already (--force replaces it)")
    asked = _Asked(name, model, device, tensor_parallel, experiment, cross_check_file)
    try:
        text, profile = _import(source, asked)
    except ValueError as error:
        raise Failure(str(error), 1) from None
    out.write_text(profile.to_json(), encoding="utf-8")
    print(text)


def _import(paths: Sequence[Path], asked: _Asked) -> tuple[str, Profile]:
    kind = detect_all(paths)
    if kind not in ("engine step log", "operator tables") and len(paths) > 1:
        raise EvidenceError(f"{kind}: one file at a time, got {len(paths)}")
    match kind:
        case "operator tables":
            if len(paths) > 1:
                raise EvidenceError(f"{kind}: one directory at a time, got {len(paths)}")
            return _tables(paths[0], asked)
        case "engine step log":
            evidence = read_engine_runs(list(paths), asked.model)
            profile = profile_from_steps(_name(asked, evidence.model.name), evidence, fit_steps(evidence))
        case "aggregated step log":
            profile = _aggregate(paths[0], asked)
        case "bench result":
            roofline = _roofline(asked, asked.tensor_parallel)
            profile = profile_from_bench(paths[0], _name(asked, roofline.model), roofline)
        case "samples":
            raise EvidenceError(f"{paths[0].name}: samples of `calibrate run` are for `calibrate fit`")
    return f"read as {kind}\n{profile_text(profile)}", profile


def _tables(directory: Path, asked: _Asked) -> tuple[str, Profile]:
    shapes, spec = model_spec(asked.model or TABLES_MODEL), device_spec(asked.device or TABLES_DEVICE)
    tables = read_tables(directory, query_heads=shapes.query_heads, kv_heads=shapes.kv_heads, head_dim=shapes.head_dim)
    composer = StepComposer(tables, shapes, spec)
    profile = profile_from_tables(asked.name or TABLES_NAME, composer, table_provenance(directory, tables))
    text = f"profile {profile.name}: {profile.model} on {profile.device}, {profile.engine}\n\n"
    text += fit_report(profile, composer)
    if asked.cross_check_file:
        rows = cross_check(asked.cross_check_file, composer)
        text += f"\n\ncomposed against {asked.cross_check_file.name} of LLMServingSim v0\n{cross_check_text(rows)}"
    return text, profile


def _aggregate(path: Path, asked: _Asked) -> Profile:
    """What the log does not say is the roofline's."""
    _roofline(asked, 1)
    evidence = read_aggregate_log(path, experiment=asked.experiment, device=asked.device or "", model=asked.model or "")
    priors = prior_weights(_roofline(asked, evidence.tensor_parallel))
    candidates, fixed = aggregate_features(evidence, priors)
    fitted = fit_steps(evidence, candidates, fixed)
    return profile_from_steps(_name(asked, evidence.model.name), evidence, fitted, fixed)


def _roofline(asked: _Asked, tensor_parallel: int) -> RooflineConfig:
    if asked.device is None or asked.model is None:
        raise EvidenceError("--device and --model are needed: what this file does not say comes from their shapes")
    device_spec(asked.device)
    model_spec(asked.model)
    return RooflineConfig(device=asked.device, model=asked.model, tensor_parallel=tensor_parallel)


def _name(asked: _Asked, model: str) -> str:
    return asked.name or (f"{asked.device}-{model}" if asked.device else model)
