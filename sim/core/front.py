"""The front door: limits on what may be inside an engine at all, and who waits outside because of them.

It stands before the engine's own queue: vLLM `max_num_queued_reqs` (running ones count too), SGLang
`max_queued_requests`, TGI `max_concurrent_requests`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sim.core.plan import ADMIT, Blocker, Decision, defer, reject
from sim.core.queue import FifoQueue
from sim.core.request import Request

if TYPE_CHECKING:
    from sim.core.state import EngineState

COMES_IN_NEXT = defer(Blocker.POLICY, "front: comes in at the next step")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontLimits:
    """None is no limit."""

    max_in_flight: int | None = None
    """Requests inside: waiting, running and swapped."""
    max_waiting: int | None = None
    """Of these, the waiting ones."""
    max_waiting_tokens: int | None = None
    """Their prompt tokens; while nobody waits a longer prompt may come in too, else it never could."""
    overflow: Literal["reject", "queue"] = "reject"
    """Whoever finds no room is refused at once, or waits outside: first come, first in."""


class Front:
    """Says who may come in, and keeps those who may not. Only events make room, never a decode step."""

    def __init__(self, limits: FrontLimits) -> None:
        self.limits = limits
        self.outside = FifoQueue()

    def receive(self, engine: EngineState, arrived: Request) -> Decision:
        """May a request that has just come go in? REJECT: it ends; DEFER: it has been put to those who wait outside."""
        reached = self._reached(engine, self.outside.first() if self.outside else arrived)
        if reached is None and not self.outside:
            return ADMIT
        if reached is not None and self.limits.overflow == "reject":
            limit, inside, most = reached
            return reject(f"queue full: {limit}", f"{inside} inside, {limit} is {most}")
        self.outside.push(arrived)
        return COMES_IN_NEXT if reached is None else _OUTSIDE[reached[0]]

    def blocks(self, engine: EngineState) -> Decision | None:
        """What the first who waits outside waits for; None if nobody does or there is room."""
        reached = self._reached(engine, self.outside.first()) if self.outside else None
        return None if reached is None else _OUTSIDE[reached[0]]

    def _reached(self, engine: EngineState, request: Request) -> tuple[str, int, int] | None:
        """The first limit that leaves the request no room: its name, what is inside, the most that may be."""
        limits, waiting = self.limits, len(engine.waiting)
        if limits.max_in_flight is not None:
            in_flight = waiting + len(engine.running) + len(engine.swapped)
            if in_flight >= limits.max_in_flight:
                return "max_in_flight", in_flight, limits.max_in_flight
        if limits.max_waiting is not None and waiting >= limits.max_waiting:
            return "max_waiting", waiting, limits.max_waiting
        if limits.max_waiting_tokens is not None and waiting:
            # Walks no more requests than the limit has tokens, and those put back by preemptions.
            tokens = sum(each.prompt_tokens for each in engine.waiting)
            if tokens + request.prompt_tokens > limits.max_waiting_tokens:
                return "max_waiting_tokens", tokens, limits.max_waiting_tokens
        return None


_OUTSIDE = {
    limit: defer(Blocker.POLICY, f"front: {limit}") for limit in ("max_in_flight", "max_waiting", "max_waiting_tokens")
}
