"""`tokenwork calibrate`: profiles from measurements. Results go to stdout."""

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
from sim.commands.errors import Failure, wrong_use

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Fit cost profiles to measurements.")


@app.callback()
def calibrate() -> None:
    """Only there so that typer makes a group."""


@app.command("import")
def import_tables(
    tables: Annotated[Path, typer.Argument(help="A directory of aiconfigurator's database, one engine version.")],
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
        raise wrong_use(f"--out {out}: exists already (--force replaces it)")
    try:
        _import(tables, out, cross_check_file, name=name, model=model, device=device)
    except ValueError as error:
        raise Failure(str(error), 1) from None


def _import(tables: Path, out: Path, cross_check_file: Path | None, *, name: str, model: str, device: str) -> None:
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
