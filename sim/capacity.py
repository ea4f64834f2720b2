"""Memory that jitters: what a pool has from when on, as a scenario says it."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from workloads.config import Config, wrong


class CapacityEvent(Config):
    """The pool of every engine has so many usable blocks from a moment on."""

    at_s: float = Field(ge=0, le=1e9, allow_inf_nan=False)
    blocks: int = Field(ge=0, le=1_000_000_000)


def _named(value: Any) -> Any:
    """A pair is as good as a table."""
    if not isinstance(value, list | tuple):
        return value
    if len(value) != 2:
        raise wrong(f"pair must be (at_s, blocks), got {list(value)}")
    return {"at_s": value[0], "blocks": value[1]}


def _in_order(events: tuple[CapacityEvent, ...]) -> tuple[CapacityEvent, ...]:
    for before, after in pairwise(events):
        if after.at_s <= before.at_s:
            raise wrong(f"at_s must increase, got {after.at_s} after {before.at_s}")
    return events


CapacityEvents = Annotated[
    tuple[Annotated[CapacityEvent, BeforeValidator(_named)], ...],
    AfterValidator(_in_order),
]
