"""What policies may hear of: the only occasions on which a policy's own state changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.core.request import Request


@dataclass(frozen=True, slots=True)
class Admitted:
    """A waiting request has entered the running list."""

    request: Request
    now_ns: int


@dataclass(frozen=True, slots=True)
class CameBack:
    """A swapped request has entered the running list again."""

    request: Request
    now_ns: int


@dataclass(frozen=True, slots=True)
class GaveWay:
    """A running request has lost its blocks."""

    request: Request
    now_ns: int


@dataclass(frozen=True, slots=True)
class RoomMade:
    """Victims were taken so that the next decode step fits; these go on."""

    survivors: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """A request is over; how (`request.state`) and after how many tokens (`request.output_tokens`) is known now."""

    request: Request
    now_ns: int


@dataclass(frozen=True, slots=True)
class Ran:
    """So many equal steps have run."""

    steps: int
    decode_requests: int
    """Per step."""
    prefill_tokens: int
    preempted: bool
    """The step had taken somebody's blocks."""


@dataclass(frozen=True, slots=True)
class WentIdle:
    """There was nothing to run."""


PolicyEvent = Admitted | CameBack | GaveWay | RoomMade | Ended | Ran | WentIdle
