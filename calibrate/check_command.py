"""`tokenwork calibrate check`: a profile against measurements, by region, with the noise floor beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrate.check_report import check_text, held_out_text
from calibrate.evidence import Evidence
from calibrate.like_steps import judge_run, like_text
from calibrate.operators import operators_text
from calibrate.records import read_samples
from calibrate.sources import found, read_steps, refuse_other_model
from costmodel.profile import Profile, ProfileError, load_profile
from costmodel.token_weights import TokenWeightsModel
from sim.commands.errors import Failure, wrong_use


def check(
    profile: Annotated[str, typer.Argument(help="A shipped profile's name, or a path that ends in .json.")],
    samples: Annotated[list[Path], typer.Argument(help="Samples of `calibrate run`, or an engine's step logs.")],
    holdout: Annotated[
        str | None,
        typer.Option(
            help="Fit again without these steps and judge by them: largest-decade, skewed, a kind (decode, prefill, "
            "verify, mixed, 'mixed with verify') or a region as printed."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A figure of predicted over measured (.png, .svg, .pdf).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """How wrong a profile is about measured steps: MAPE, median, P90, worst and bias by region, beside the noise.

    Of an engine's log also the means of like steps and the busy time, after one speed factor per run.
    """
    if out is not None and out.exists() and not force:
        raise wrong_use(f"--out {out}: exists already (--force replaces it)")
    try:
        judged = load_profile(profile)
        samples = found(samples)
        evidence = read_steps(samples)
        refuse_other_model(judged, evidence)
        text = _text(judged, evidence, samples, holdout)
        if out is not None:
            _draw(judged, evidence, out)
    except ProfileError:
        raise  # unknown or unreadable: the program's own exit status
    except ValueError as error:
        raise Failure(str(error), 1) from None
    print(text)


def _text(profile: Profile, evidence: Evidence, paths: list[Path], holdout: str | None) -> str:
    model = TokenWeightsModel(profile.terms(), profile.range())
    blocks = [check_text(profile, model, evidence)]
    if evidence.kind == "engine step log":
        title = "after one speed factor per run, from its first fifth and judged on the rest\n"
        blocks.append(title + like_text([judge_run(model, series) for series in evidence.series]))
    seen = was_fitted_to(profile, evidence)
    if holdout is not None or (seen and evidence.kind == "samples"):
        blocks.append(held_out_text(evidence, holdout))
    if evidence.kind == "samples":
        operators = operators_text([m for path in paths for m in read_samples(path).measurements])
        blocks += [operators] if operators else []
    return "\n\n".join(blocks)


def was_fitted_to(profile: Profile, evidence: Evidence) -> bool:
    """Whether any of these files, by hash, was seen by the fit."""
    seen = {file.sha256 for file in profile.provenance.files}
    return any(series.file.sha256 in seen for series in evidence.series)


def _draw(profile: Profile, evidence: Evidence, out: Path) -> None:
    from calibrate.check_figure import draw_check  # matplotlib is slow to load

    draw_check(profile, evidence, out)
