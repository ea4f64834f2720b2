"""`tokenwork calibrate weights`: what a token weighs by a profile, and whether that is worth having."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrate.evidence import EvidenceError
from calibrate.fit_steps import LEAST_STEPS
from calibrate.sources import found, read_steps, refuse_other_model
from calibrate.work_report import spread_text, work_text
from costmodel.profile import ProfileError, load_profile
from sim.commands.errors import Failure


def weights(
    profile: Annotated[str, typer.Argument(help="A shipped profile's name, or a path that ends in .json.")],
    samples: Annotated[
        list[Path] | None, typer.Argument(help="Samples or step logs: show what is left of step time at constant work.")
    ] = None,
    replay: Annotated[
        bool,
        typer.Option(
            "--replay", help="Also replay a made-up load under a step budget with equal and with calibrated weights."
        ),
    ] = False,
) -> None:
    """Token-work weights at the profile's reference, over batch and context, and what they are good for."""
    try:
        judged = load_profile(profile)
        blocks = [f"profile {judged.name}: {judged.model} ({judged.dtype}) on {judged.device}", work_text(judged)]
        if samples:
            evidence = read_steps(found(samples))
            refuse_other_model(judged, evidence)
            if len(evidence.steps) < LEAST_STEPS:
                raise EvidenceError(f"{samples[0].name}: {len(evidence.steps)} steps, needs >= {LEAST_STEPS}")
            blocks.append(spread_text(evidence, judged.reference))
        if replay:
            from calibrate.work_replay import replay_text  # brings the whole simulator

            blocks.append(replay_text(profile, judged))
    except ProfileError:
        raise  # unknown or unreadable: the program's own exit status
    except ValueError as error:
        raise Failure(str(error), 1) from None
    print("\n\n".join(blocks))
