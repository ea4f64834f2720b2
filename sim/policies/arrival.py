"""Order by arrival, for good."""

from __future__ import annotations

from operator import attrgetter

from sim.core.queue import SortedQueue, WaitingQueue
from sim.policies.protocols import OrderPolicy
from sim.policies.registry import ORDER


@ORDER.register("arrival")
class Arrival(OrderPolicy):
    """In order of arrival; a preempted request keeps its place (TensorRT-LLM)."""

    prevents_starvation = True

    def queue(self) -> WaitingQueue:
        return SortedQueue(attrgetter("number"))
