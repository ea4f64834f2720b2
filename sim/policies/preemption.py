"""Preemption: who gives way when a running request's next block is not there, and what becomes of him.

Unless said otherwise his KV is dropped, and he waits to be computed again.
"""

from __future__ import annotations

from sim.core.plan import PreemptionMode, StepDraft
from sim.core.request import Request
from sim.policies.mode import FixedMode
from sim.policies.protocols import EngineView, PreemptionPolicy
from sim.policies.registry import PREEMPTION


@PREEMPTION.register("none")
class NoPreemption(PreemptionPolicy):
    """Nobody gives way: who lacks a block waits for this step. For engines that reserve to completion."""

    def victim(self, engine: EngineView, request: Request, draft: StepDraft) -> Request | None:
        return None


@PREEMPTION.register("self")
class SelfPreemption(PreemptionPolicy):
    """Who lacks a block gives way himself (preset `textbook`)."""

    def victim(self, engine: EngineView, request: Request, draft: StepDraft) -> Request | None:
        return request


@PREEMPTION.register("fail")
class FailAsker(SelfPreemption):
    """Who lacks a block ends: nobody gives way for him, and he does not come back (mini-runtime)."""

    def mode(self, engine: EngineView, victim: Request) -> PreemptionMode:
        return PreemptionMode.FAIL


@PREEMPTION.register("newest")
class Newest(FixedMode):
    """The last of the running list, maybe the one that asks: the most recently admitted (vLLM under fcfs).

    `mode`: he is recomputed, swapped to the host (which must have a pool), or fails.
    """

    def victim(self, engine: EngineView, request: Request, draft: StepDraft) -> Request | None:
        return next(reversed(engine.running))


@PREEMPTION.register("least-urgent")
class LeastUrgent(FixedMode):
    """The largest (priority, arrival) of all that run, the first in the list on ties (vLLM V1 under priority).

    `mode`: as for `newest`.
    """

    def victim(self, engine: EngineView, request: Request, draft: StepDraft) -> Request | None:
        return max(engine.running, key=lambda other: (other.priority, other.arrival_ns))
