"""The waiting requests in the order in which they are looked at: a FIFO, or sorted by a key."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from sim.core.request import Request


class WaitingQueue(Protocol):
    """Every operation is O(1) or a memmove; none walks the queue."""

    def push(self, request: Request) -> None: ...
    def push_front(self, request: Request) -> None:
        """Requeue a preempted request: in front if the order is one of arrival, else where its key puts it."""

    def arrange(self, requests: Iterable[Request]) -> None:
        """Put all that wait into this order (order policies that sort before each scan)."""

    def remove(self, request: Request) -> None: ...
    def first(self) -> Request: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Request]: ...


class FifoQueue(OrderedDict[Request, None]):
    """An ordered set (by inheritance: its length is asked for several times a step)."""

    def push(self, request: Request) -> None:
        self[request] = None

    def push_front(self, request: Request) -> None:
        self[request] = None
        self.move_to_end(request, last=False)

    def remove(self, request: Request) -> None:
        del self[request]

    def first(self) -> Request:
        return next(iter(self))

    def arrange(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.move_to_end(request)


class SortedQueue:
    """Sorted by a key that does not change while a request waits and differs between any two requests."""

    def __init__(self, key: Callable[[Request], Any]) -> None:
        self._key = key
        self._entries: list[tuple[Any, Request]] = []

    def push(self, request: Request) -> None:
        insort(self._entries, (self._key(request), request), key=_key_of)

    push_front = push

    def remove(self, request: Request) -> None:
        at = bisect_left(self._entries, self._key(request), key=_key_of)
        assert self._entries[at][1] is request
        del self._entries[at]

    def first(self) -> Request:
        return self._entries[0][1]

    def arrange(self, requests: Iterable[Request]) -> None:
        """It keeps its own order: that an engine sorts its queue now and then does not undo a chosen order."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in self._entries)


def _key_of(entry: tuple[Any, Request]) -> Any:
    return entry[0]
