"""Preemption: who gives way when a running request's next block is not there. Recompute: his KV is dropped."""

from __future__ import annotations

from sim.core.plan import StepDraft
from sim.core.request import Request
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


@PREEMPTION.register("newest")
class Newest(PreemptionPolicy):
    """The most recently admitted running request, maybe the one that asks (vLLM V1 under fcfs)."""

    def victim(self, engine: EngineView, request: Request, draft: StepDraft) -> Request | None:
        return next(reversed(engine.running))


@PREEMPTION.register("least-urgent")
class LeastUrgent(PreemptionPolicy):
    """The largest (priority, arrival) of all that run, the first in the list on ties (vLLM V1 under priority)."""

    def victim(self, engine: EngineView, request: Request, draft: StepDraft) -> Request | None:
        return max(engine.running, key=lambda other: (other.priority, other.arrival_ns))
