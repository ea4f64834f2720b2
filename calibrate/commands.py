"""The calibration commands: plain functions that a command line can register. They print their result to stdout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrate.compose import StepComposer
from calibrate.cross_check import cross_check, cross_check_text
from calibrate.fit_report import fit_report
from calibrate.profile_from_tables import profile_from_tables, table_provenance
from calibrate.public_tables import read_tables
from costmodel.specs import device_spec, model_spec


def import_tables(
    tables: Path,
    out: Annotated[Path, typer.Option(help="Where the profile goes.")],
    cross_check_file: Annotated[Path | None, typer.Option("--cross-check", help="layers.csv[.gz] to compare.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    name: Annotated[str, typer.Option(help="The profile's name.")] = "h100-llama-3.1-8b-bf16",
    model: Annotated[str, typer.Option(help="A name in costmodel/specs.py.")] = "llama-3.1-8b",
    device: Annotated[str, typer.Option(help="A name in costmodel/specs.py.")] = "h100-sxm",
) -> None:
    """Fit a token-weights profile to measured operator tables (a directory of aiconfigurator's database).

    Prints how wrong the fit is per region; with a layers file of LLMServingSim v0, also how that differs.
    """
    if out.exists() and not force:
        raise FileExistsError(f"{out} exists: give --force to replace it")
    shapes, spec = model_spec(model), device_spec(device)
    operators = read_tables(tables, query_heads=shapes.query_heads, kv_heads=shapes.kv_heads, head_dim=shapes.head_dim)
    composer = StepComposer(operators, shapes, spec)
    profile = profile_from_tables(name, composer, table_provenance(tables, operators))
    out.write_text(profile.to_json(), encoding="utf-8")
    print(f"profile {profile.name}: {profile.model} on {profile.device}, {profile.engine}\n")
    print(fit_report(profile, composer))
    if cross_check_file:
        rows = cross_check(cross_check_file, composer)
        print(f"\ncomposed against {cross_check_file.name} of LLMServingSim v0\n{cross_check_text(rows)}")
