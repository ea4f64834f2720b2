"""Order: in which order waiting requests are looked at."""

from __future__ import annotations

from sim.core.queue import FifoQueue, SortedQueue, WaitingQueue
from sim.core.request import Request
from sim.policies.protocols import OrderPolicy
from sim.policies.registry import ORDER


@ORDER.register("fcfs")
class Fcfs(OrderPolicy):
    """First come, first served; a preempted request returns to the front."""

    prevents_starvation = True

    def queue(self) -> WaitingQueue:
        return FifoQueue()


@ORDER.register("priority")
class Priority(OrderPolicy):
    """Smaller priority value first, then earlier arrival, then id as text (vLLM V1); requeued by the same key."""

    def queue(self) -> WaitingQueue:
        return SortedQueue(_urgency)


def _urgency(request: Request) -> tuple[int, int, str]:
    return request.priority, request.arrival_ns, request.id
