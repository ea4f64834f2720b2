"""Eviction: which cached contents go first when a tree cache must make room."""

from __future__ import annotations

from sim.policies.protocols import EvictionPolicy, Span
from sim.policies.registry import EVICTION

__all__ = ["EvictionPolicy", "LeastUrgentLeaf", "LruLeaf", "Span"]


@EVICTION.register("lru")
class LruLeaf:
    """Last access longest ago first (SGLang 0.5.23 `LRUStrategy`, its default)."""

    def rank(self, span: Span, /) -> tuple[float, ...]:
        return (span.last_access,)


@EVICTION.register("priority")
class LeastUrgentLeaf:
    """The least urgent contents first, then by last access (SGLang 0.5.23 `PriorityStrategy`)."""

    def rank(self, span: Span, /) -> tuple[float, ...]:
        return (-span.priority, span.last_access)
