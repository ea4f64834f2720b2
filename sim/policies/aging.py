"""Priorities that starve nobody: waiting makes more urgent, and a victim is spared for a while.

Both read a request's *aged* priority: its priority less one for every `aging_s` since it arrived, fractions included.
All ages grow alike, so the order of two requests never changes: it is that of priority x aging_s + arrival.
"""

from __future__ import annotations

from sim.core.events import Admitted, CameBack, Ended, PolicyEvent
from sim.core.plan import StepDraft
from sim.core.queue import SortedQueue, WaitingQueue
from sim.core.request import Request
from sim.policies.deadline import nanoseconds
from sim.policies.mode import FixedMode, Mode
from sim.policies.protocols import EngineView, OrderPolicy
from sim.policies.registry import ORDER, PREEMPTION


@ORDER.register("priority-aging")
class PriorityAging(OrderPolicy):
    """Smaller priority value first; it falls by one per `aging_s` since arrival, so that nobody waits for ever.

    A request of priority p is overtaken only by those of priority q < p that arrive less than (p - q) x `aging_s`
    after it.
    """

    prevents_starvation = True

    def __init__(self, aging_s: float = 10.0) -> None:
        self.aging_ns = nanoseconds("aging_s", aging_s)

    def queue(self) -> WaitingQueue:
        return SortedQueue(self._key)

    def _key(self, request: Request) -> tuple[int, int]:
        return request.priority * self.aging_ns + request.arrival_ns, request.number


@PREEMPTION.register("least-urgent-hysteresis")
class LeastUrgentHysteresis(FixedMode):
    """As `least-urgent`, but who has just been let in, or has given way often, is spared while somebody else can go on.

    `min_residency_s`: spared for so long after each admission or return from the host. `max_preemptions`: spared after
    so many, 0 = never. `aging_s`: priorities age as in `priority-aging`; 0 = they do not. `mode`: as for `newest`.
    If all are spared, who lacks a block does without in this step, as long as somebody else runs in it; else the least
    urgent gives way all the same.
    """

    timeless = False

    def __init__(
        self, min_residency_s: float = 1.0, max_preemptions: int = 3, aging_s: float = 0.0, mode: Mode = "recompute"
    ) -> None:
        super().__init__(mode)
        if max_preemptions < 0:
            raise ValueError(f"max_preemptions must be >= 0 (0 = no bound), got {max_preemptions}")
        self.min_residency_ns = nanoseconds("min_residency_s", min_residency_s)
        self.max_preemptions = max_preemptions
        self.aging_ns = nanoseconds("aging_s", aging_s)
        self._admitted_ns: dict[Request, int] = {}

    def observe(self, event: PolicyEvent) -> None:
        if isinstance(event, Admitted | CameBack):
            self._admitted_ns[event.request] = event.now_ns
        elif isinstance(event, Ended):
            self._admitted_ns.pop(event.request, None)

    def victim(self, engine: EngineView, request: Request, draft: StepDraft) -> Request | None:
        exposed = [other for other in engine.running if not self._spared(engine, other)]
        if exposed:
            return max(exposed, key=self._urgency)
        return None if _others_run(engine, request, draft) else max(engine.running, key=self._urgency)

    def _spared(self, engine: EngineView, request: Request) -> bool:
        if self.max_preemptions and request.preemptions >= self.max_preemptions:
            return True
        since_ns = self._admitted_ns.get(request)
        return since_ns is not None and engine.now_ns - since_ns < self.min_residency_ns

    def _urgency(self, request: Request) -> tuple[int, int]:
        if self.aging_ns:
            return request.priority * self.aging_ns + request.arrival_ns, request.number
        return request.priority, request.arrival_ns


def _others_run(engine: EngineView, request: Request, draft: StepDraft) -> bool:
    """Whether the step has work without this request: drafted already, or a decode that has room for its next token."""
    if not draft.empty:
        return True
    refused = set(draft.refused)
    return any(
        other.decoding and other.computed_tokens % engine.block_tokens and other not in refused
        for other in engine.running
        if other is not request
    )
