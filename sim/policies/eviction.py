"""Eviction: which cached contents go first when a tree cache must make room."""

from __future__ import annotations

from typing import Protocol

from sim.policies.registry import EVICTION


class Span(Protocol):
    """Consecutive cached blocks that are accessed, kept and evicted as one."""

    @property
    def last_access(self) -> int:
        """A logical time: larger is later, and no two accesses share one."""

    @property
    def priority(self) -> int:
        """That of the most urgent request that has computed it. Smaller is more urgent."""

    @property
    def num_hits(self) -> int:
        """Requests that have computed it or found it cached on their way."""

    @property
    def length(self) -> int:
        """Blocks."""


class EvictionPolicy(Protocol):
    """Ranks the spans that nobody uses and nothing hangs on. Pure: equal spans, equal ranks."""

    def rank(self, span: Span, /) -> tuple[float, ...]:
        """The smallest goes first; on ties the one whose last access is longest ago."""


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
