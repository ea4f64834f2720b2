"""A request's events and waits in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sim.core.plan import Blocker, PreemptionMode
from sim.results.events import Happening
from sim.results.wording import clipped, count

MOST_NAMED = 3
"""So many others are named; beyond, they are counted."""


class Where(Enum):
    """Where a request waits."""

    OUTSIDE = "outside"
    QUEUE = "queue"
    REQUEUE = "requeue"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of waiting in which the same is lacking."""

    where: Where
    from_ns: int
    until_ns: int
    blocker: Blocker
    """STEP: nobody has looked yet, or who was looked at got in."""
    reasons: tuple[str, ...]
    heads: tuple[str, ...]
    """At whom the scan ended meanwhile; empty: the reasons are the same for everybody."""
    free_blocks: int | None
    running: int | None
    """At its beginning."""


class Telling:
    """Words for the events of one request, with the numbers of the engine that it was on."""

    def __init__(self, request_id: str, engine: Mapping[str, Any], prompts: Mapping[str, int]) -> None:
        self.request_id = request_id
        self.engine = engine
        self.prompts = prompts
        self._known_tokens = prompts[request_id]
        self._admissions = 0

    def of(self, event: Mapping[str, Any]) -> str:
        """What happened. Events must be told in their order."""
        return _WORDS[Happening(event["event"])](self, event)

    def _arrived(self, event: Mapping[str, Any]) -> str:
        waiting = event["num_requests"]
        return f"arrived, {count(waiting, 'request')} waiting" if waiting else "arrived, nobody waiting"

    def _admitted(self, event: Mapping[str, Any]) -> str:
        self._admissions += 1
        again = " again" if self._admissions > 1 else ""
        cached = f"{count(event['tokens'], 'token')} of it cached" if event["tokens"] else "nothing of it cached"
        return f"admitted{again}, {cached}"

    def _preempted(self, event: Mapping[str, Any]) -> str:
        asker = event["other_id"]
        whom = "for its own next block"
        if asker is None:
            whom = "to make room for the step"
        elif asker != self.request_id:
            whom = f"for the next block of {clipped(asker, 40)}"
        if event["what"] == PreemptionMode.SWAP.value:
            return f"preempted {whom} (swap): its KV moves to the host"
        self._known_tokens = event["tokens"] + 1
        return f"preempted {whom} ({event['what']}): {count(event['tokens'], 'token')} of KV lost"

    def _ended(self, event: Mapping[str, Any]) -> str:
        reason = f": {clipped(event['reason'], 60)}" if event["reason"] else ""
        detail = f" ({clipped(event['detail'], 160)})" if event["detail"] else ""
        return f"{event['what'].replace('_', ' ')}{reason}{detail}, {count(event['tokens'], 'token')} out"

    def waiting(self, piece: Piece) -> str:
        """What it waits for, with the numbers where they are known."""
        if piece.where is Where.HOST:
            return "waits on the host for blocks to come back to"
        if piece.where is Where.OUTSIDE:
            return "waits outside: no more may be inside"
        if piece.blocker is Blocker.STEP:
            return "waits for the step in progress"
        mine = piece.heads == (self.request_id,)
        who = "not let in" if mine else f"waits behind {self._named(piece.heads)}" if piece.heads else "waits"
        return f"{who}: {clipped(', '.join(piece.reasons), 120)}{self._numbers(piece, mine)}"

    def _named(self, heads: tuple[str, ...]) -> str:
        names = ", ".join(clipped(head, 40) for head in heads[:MOST_NAMED])
        more = len(heads) - MOST_NAMED
        return f"{names} and {more:,} more" if more > 0 else names

    def _numbers(self, piece: Piece, mine: bool) -> str:
        if piece.blocker is Blocker.SLOTS and piece.running is not None:
            return f" ({piece.running:,} of {self.engine['max_running']:,} taken)"
        if piece.blocker is not Blocker.BLOCKS or piece.free_blocks is None:
            return ""
        free = f"{piece.free_blocks:,} of {self.engine['total_blocks']:,} blocks free"
        if mine:
            return f" ({free}, its {self._known_tokens:,} tokens take {self._blocks(self._known_tokens):,})"
        if len(piece.heads) == 1:
            head = piece.heads[0]
            return f" ({free}, the prompt of {clipped(head, 40)} takes {self._blocks(self.prompts[head]):,})"
        return f" ({free})"

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // int(self.engine["block_tokens"]))


_WORDS: dict[Happening, Callable[[Telling, Mapping[str, Any]], str]] = {
    Happening.ARRIVED: Telling._arrived,
    Happening.KEPT_OUT: lambda telling, event: "kept outside the engine's queue",
    Happening.CAME_IN: lambda telling, event: "came into the engine's queue",
    Happening.FIRST_TOKEN: lambda telling, event: "first token out",
    Happening.ENDED: Telling._ended,
    Happening.PREEMPTED: Telling._preempted,
    Happening.SWAPPED_IN: lambda telling, event: f"back from the host with {count(event['blocks'], 'block')}",
    Happening.ADMITTED: Telling._admitted,
}
