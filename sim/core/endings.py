"""When each request will end: the truth, which only the engine core sees. No policy gets hold of it."""

from __future__ import annotations

from heapq import heappop, heappush

from sim.core.cohort import FOREVER
from sim.core.request import Request


class Endings:
    """How many tokens each live request's answer has, and at which step of the cohort a decoding one is over."""

    __slots__ = ("_entries", "_fewest", "_heap", "_pushes", "_stop_after")

    def __init__(self, *, fewest: int = 1) -> None:
        self._fewest = fewest
        """An end is not noticed before so many tokens."""
        self._stop_after: dict[Request, int] = {}
        self._entries: dict[Request, tuple[int, int, Request]] = {}
        """The heap's entry of each request that decodes; others in the heap are stale and skipped."""
        self._heap: list[tuple[int, int, Request]] = []
        """(last step, number of the push, request)."""
        self._pushes = 0

    def promise(self, request: Request, stop_after: int) -> None:
        """Its executor will stop a request after so many tokens, or at its max_tokens."""
        last = stop_after if stop_after < request.max_tokens else request.max_tokens
        self._stop_after[request] = last if last > self._fewest else self._fewest

    def __contains__(self, request: object) -> bool:
        """Whether a request is alive."""
        return request in self._stop_after

    def forget(self, request: Request) -> None:
        self._stop_after.pop(request, None)

    def by_length(self, request: Request) -> bool:
        """Whether it ends at its max_tokens, which a scheduler knows too, or before, which nobody knows."""
        return self._stop_after[request] >= request.max_tokens

    # -- while it decodes

    def enter(self, request: Request, step: int) -> None:
        """It gets a token from each of the cohort's steps from `step` on."""
        self._pushes += 1
        last_step = step + self._stop_after[request] - request.outputs
        self._entries[request] = entry = (last_step, self._pushes, request)
        heappush(self._heap, entry)

    def leave(self, request: Request) -> int:
        """It does not decode any more; returns the step at which it would have been over."""
        return self._entries.pop(request)[0]

    def miss(self, request: Request) -> None:
        """It has missed one of the cohort's steps."""
        self._pushes += 1
        self._entries[request] = entry = (self.last_step(request) + 1, self._pushes, request)
        heappush(self._heap, entry)

    def last_step(self, request: Request) -> int:
        return self._entries[request][0]

    def next_step(self) -> int:
        """The first step count at which somebody is over; FOREVER if nobody decodes."""
        heap, entries = self._heap, self._entries
        while heap:
            if entries.get(heap[0][2]) is heap[0]:
                return heap[0][0]
            heappop(heap)
        return FOREVER

    def pop_due(self, step: int) -> list[Request]:
        """Who is over by `step`, in list order; each is told once."""
        if not self._heap or self._heap[0][0] > step:
            return []
        due = []
        while self.next_step() <= step:
            due.append(heappop(self._heap)[2])
        due.sort(key=lambda request: request.seq)
        return due
