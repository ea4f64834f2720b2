"""The counting store: no sharing, one number. The same laws as for the identified family (`test_hashed.py`)."""

from __future__ import annotations

import pytest
from hypothesis import settings

from sim.core.request import Request
from sim.kv.hashed import HashedStore
from sim.kv.store import NO_HIT, BlockStore, CountingStore
from tests.sim.kv.store_machine import StoreMachine


class CountingMachine(StoreMachine):
    """A store without sharing agrees with a pool of blocks that forget what they held."""

    caching = False

    def make_store(self, total_blocks: int, block_tokens: int) -> BlockStore:
        return CountingStore(total_blocks, block_tokens)


TestCountingStore = CountingMachine.TestCase
TestCountingStore.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)


def test_no_hits_no_learning_no_evictions():
    """Whatever comes and goes, nothing is ever found cached."""
    store = CountingStore(10, 4)
    request = Request("a", prompt_tokens=12, max_tokens=4)
    store.attach(request, store.match(request))
    store.grow(request, 3, 3)
    assert store.free_blocks == 7
    store.release(request, 3, 3, returns=True)
    assert store.match(request) is NO_HIT
    assert not store.learns_from(request)
    assert (store.free_blocks, store.cached_blocks, store.evicted_blocks) == (10, 0, 0)


def test_invariants_notice_a_leak():
    """check_invariants fails where held + free is not the total, in both families."""
    for store in (CountingStore(10, 4), HashedStore(10, 4)):
        store.take(3)
        store.check_invariants(3)
        with pytest.raises(AssertionError):
            store.check_invariants(2)


def test_seeding_needs_a_cache():
    """An initial cache is a wrong use of a store that has none, and the message says what to do."""
    with pytest.raises(ValueError, match="enable prefix caching"):
        CountingStore(4, 4).seed(Request("a", prompt_tokens=4, max_tokens=1), 1)
