"""`tokenwork calibrate fit`: a profile from samples of `calibrate run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrate.evidence import EvidenceError
from calibrate.fit_steps import fit_steps
from calibrate.profile_from_steps import profile_from_steps
from calibrate.profile_text import profile_text
from calibrate.sources import detect_all, found
from calibrate.timed_samples import read_timed_samples
from sim.commands.errors import Failure, wrong_use


def fit_samples(
    samples: Annotated[
        list[Path], typer.Argument(help="Samples of `calibrate run` (files or its --out), all of one device and model.")
    ],
    out: Annotated[Path, typer.Option(help="Where the profile goes.")],
    name: Annotated[str | None, typer.Option(help="The profile's name; default: the file's.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Fit token weights to timed steps, and print how wrong they are, held out by region and by size."""
    if out.exists() and not force:
        raise wrong_use(f"--out {out}: exists already (--force replaces it)")
    try:
        samples = found(samples)
        kind = detect_all(samples)
        if kind != "samples":
            raise EvidenceError(f"{samples[0].name} is {kind}: that is for `calibrate import`")
        evidence = read_timed_samples(samples)
        profile = profile_from_steps(name or out.stem, evidence, fit_steps(evidence))
    except ValueError as error:
        raise Failure(str(error), 1) from None
    out.write_text(profile.to_json(), encoding="utf-8")
    print(profile_text(profile))
    given = " ".join(map(str, samples))
    print(f"\nnext: tokenwork calibrate check {out} {given}\n      tokenwork replay chat-1k --profile {out}")
