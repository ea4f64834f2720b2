"""`tokenwork calibrate`: profiles from measurements. Results go to stdout."""

from __future__ import annotations

import typer

from calibrate.check_command import check
from calibrate.fit_command import fit_samples
from calibrate.import_command import import_measurements
from calibrate.run_command import run
from calibrate.weights_command import weights

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Time real work, and fit cost profiles to it.")


@app.callback()
def calibrate() -> None:
    """Only there so that typer makes a group."""


app.command("run")(run)
app.command("fit")(fit_samples)
app.command("check")(check)
app.command("weights")(weights)
app.command("import")(import_measurements)
