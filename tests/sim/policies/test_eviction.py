"""Which cached contents go first."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sim.policies.eviction import EVICTION, EvictionPolicy
from sim.policies.registry import UnknownName


@dataclass(frozen=True)
class Cached:
    last_access: int = 1
    priority: int = 0
    num_hits: int = 1
    length: int = 1


def order(policy: EvictionPolicy, *spans: Cached) -> list[Cached]:
    return sorted(spans, key=policy.rank)


def test_lru_looks_at_the_last_access_only():
    """Neither length nor priority nor hits keep a leaf whose last access is longest ago."""
    old, new = Cached(last_access=1, priority=-5, num_hits=9, length=100), Cached(last_access=2)
    assert order(EVICTION.make("lru"), new, old) == [old, new]


def test_priority_gives_up_the_least_urgent():
    """Smaller is more urgent, as in the rest of the scheduler; among equals the last access decides."""
    urgent, old, new = Cached(1, priority=0), Cached(2, priority=3), Cached(3, priority=3)
    assert order(EVICTION.make("priority"), urgent, new, old) == [old, new, urgent]


def test_names():
    """Registered by name like every policy."""
    assert EVICTION.names() == ["lru", "priority"]
    with pytest.raises(UnknownName, match="unknown eviction policy 'lfu'"):
        EVICTION.make("lfu")
