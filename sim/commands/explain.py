"""`tokenwork explain`: one request's story, from the folder of a replay."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from sim.commands.errors import wrong_use
from sim.core.plan import Blocker
from sim.results.story import NoSuchRequest, Story, story
from sim.results.summary import BLOCKER_WORDS
from sim.results.wording import clipped, count


def explain(
    run: Annotated[Path, typer.Argument(help="The folder that `tokenwork replay --out` has written.")],
    request: Annotated[str, typer.Option(help="The id of the request.")],
) -> None:
    """Tell what happened to a request and why. Example: tokenwork explain report --request 17"""
    if not run.is_dir():
        raise wrong_use(f"{run}: no folder of results (tokenwork replay TRACE --out {run})")
    try:
        print(story_text(story(run, request)))
    except NoSuchRequest as error:
        raise wrong_use(f"--request: {error}") from None
    except FileNotFoundError as error:
        raise wrong_use(f"{run}: {Path(error.filename).name} is missing: no folder of results") from None


def story_text(told: Story) -> str:
    """A story line by line, with its sums."""
    tokens = f"prompt {count(told.prompt_tokens, 'token')}, {count(told.output_tokens, 'token')} out"
    lines = [f"request {clipped(told.request_id, 60)}: {told.end.replace('_', ' ')}, {tokens}"]
    lines += [f"{_seconds(moment.time_ns):>16}  {moment.text}" for moment in told.moments]
    lines.append(f"before its first admission it waited {_waited(told.queue_ns)}")
    if told.preemptions:
        lost = f"{count(told.preemptions, 'preemption')}, {count(told.lost_tokens, 'token')} of KV lost"
        lines.append(f"after {lost}, it waited {_waited(told.requeue_ns)}")
    return "\n".join(lines)


def _seconds(time_ns: int) -> str:
    return f"{time_ns / 1e9:,.6f} s"


def _waited(by_blocker: Mapping[str, int]) -> str:
    """`0.200000 s (KV blocks 0.200000 s)`: the longest first."""
    parts = sorted(by_blocker.items(), key=lambda part: -part[1])
    causes = ", ".join(f"{BLOCKER_WORDS[Blocker(name)]} {_seconds(waited)}" for name, waited in parts)
    return _seconds(sum(by_blocker.values())) + (f" ({causes})" if causes else "")
