"""The prefix cache in runs agrees with one object per block: hits, free blocks, evictions in order, twins."""

from __future__ import annotations

from hypothesis import settings

from sim.core.lifecycle import State
from sim.core.request import Request
from sim.kv.content import Content
from sim.kv.hashed import HashedStore
from sim.kv.store import BlockStore
from tests.sim.kv.block_pool import BlockPool
from tests.sim.kv.store_machine import StoreMachine


class HashedMachine(StoreMachine):
    def make_store(self, total_blocks: int, block_tokens: int) -> BlockStore:
        store = HashedStore(total_blocks, block_tokens)
        store.evictions = []
        return store

    def more_checks(self) -> None:
        """Law 4: nothing with a reference is evicted, so whatever a running request has named can be looked up."""
        assert isinstance(self.store, HashedStore)
        assert self.store.evictions == self.oracle.evictions
        for guest in self.guests:
            if guest.runs:
                probe = Request("probe", prompt_tokens=1000, max_tokens=1, content=guest.request.content)
                probe.preemptions = guest.request.preemptions
                assert self.store.match(probe).blocks >= self.named(guest)


TestHashedStore = HashedMachine.TestCase
TestHashedStore.settings = settings(max_examples=80, stateful_step_count=60, deadline=None, derandomize=True)


def test_many_lives():
    """The same operations over more pools and longer lives than hypothesis has patience for."""
    for seed in range(1000):
        HashedMachine().walk(seed, operations=60)


# -- made cases: what the walks above meet now and then, small enough to follow

BLOCK = 4


def guest(owner: int, *ids: int, blocks_per_id: int = 1) -> Request:
    """A request whose prompt is exactly its named blocks and one token more."""
    content = Content(ids, shared_blocks=len(ids) * blocks_per_id, owner=owner, blocks_per_id=blocks_per_id)
    return Request(f"r{owner}", prompt_tokens=content.shared_blocks * BLOCK + 1, max_tokens=9, content=content)


def run_prompt(store: HashedStore, request: Request) -> int:
    """Admit it with its whole prompt; returns the blocks hit."""
    hit = store.match(request)
    full = request.prompt_tokens // BLOCK
    store.attach(request, hit)
    store.grow(request, full + 1 - hit.blocks, full)
    return hit.blocks


def leave(store: HashedStore, request: Request) -> None:
    full = request.prompt_tokens // BLOCK
    store.release(request, full + 1, full, returns=False)


def store_of(blocks: int) -> HashedStore:
    store = HashedStore(blocks, BLOCK)
    store.evictions = []
    return store


def test_partial_hit_takes_only_what_is_equal():
    """Two of four cached blocks are hit; the other two stay cached, and are evicted deep end first."""
    store = store_of(7)
    first, second = guest(1, 10, 11, 12, 13), guest(2, 10, 11, 99)
    run_prompt(store, first)
    leave(store, first)
    assert store.match(second).free_blocks == 2
    assert run_prompt(store, second) == 2
    assert (store.free_blocks, store.cached_blocks) == (3, 2)
    store.take(2)
    assert store.evictions == [13]
    store.take(1)
    assert store.evictions == [13, 12]
    assert store.match(guest(3, 10, 11, 12, 13)).blocks == 2


def test_split_while_referenced():
    """A hit splits a run that somebody holds; he gives both parts back, and nobody else's."""
    store = store_of(8)
    first, second = guest(1, 10, 11, 12, 13), guest(2, 10, 11)
    run_prompt(store, first)
    assert store.match(second).free_blocks == 0
    assert run_prompt(store, second) == 2
    store.check_invariants(5 + 3)
    leave(store, first)
    assert (store.free_blocks, store.cached_blocks) == (5, 2)
    leave(store, second)
    assert (store.free_blocks, store.cached_blocks) == (8, 4)


def test_grown_past_a_branch():
    """A run that grew in place after others had branched off inside it is still found beyond that point."""
    store = store_of(12)
    trunk, branch = guest(1, 10, 11), guest(2, 10, 20, 21)
    store.attach(trunk, store.match(trunk))
    store.grow(trunk, 1, 1)
    run_prompt(store, branch)
    leave(store, branch)
    store.grow(trunk, 1, 2)
    assert store.match(guest(3, 10, 20, 21)).blocks == 3
    assert store.match(guest(4, 10, 11, 12)).blocks == 2


def twins(store: HashedStore) -> tuple[Request, Request]:
    """Two requests that have computed the same three blocks side by side."""
    first, second = guest(1, 10, 11, 12), guest(2, 10, 11, 12)
    for request in (first, second):
        store.attach(request, store.match(request))
        store.grow(request, 1, 0)
    for request in (first, second):
        store.grow(request, 3, 3)
    return first, second


def test_eviction_inside_twins():
    """Equal blocks are not merged: evicting some of one copy uncovers the other one's, from the first registered on."""
    store = store_of(9)
    first, second = twins(store)
    leave(store, first)
    assert (store.free_blocks, store.cached_blocks) == (5, 3)
    store.take(4)  # two blank blocks, then the deepest two of the first copy
    assert store.evictions == [12, 11]
    hit = store.match(guest(3, 10, 11, 12))
    assert (hit.blocks, hit.free_blocks) == (3, 1)  # block 10 of the released copy, 11 and 12 of the held one
    leave(store, second)
    hit = store.match(guest(3, 10, 11, 12))
    assert (hit.blocks, hit.free_blocks) == (3, 3)


def test_partial_hit_inside_twins():
    """A hit splits all copies at once, so that each copy still covers the same blocks."""
    store = store_of(12)
    first, second = twins(store)
    third = guest(3, 10, 99)
    assert run_prompt(store, third) == 1
    store.check_invariants(4 + 4 + 3)
    for request in (second, third, first):
        leave(store, request)
    # Released: the second's copy, then the third's block, then the first's copy with the block that both had.
    store.take(store.free_blocks - store.cached_blocks)
    store.take(4)
    assert store.evictions == [12, 11, 10, 99]


def test_ids_of_many_blocks():
    """An id h for several engine blocks is keyed (h, j): a hit may end inside it, and ids do not run together."""
    store = store_of(20)
    first = guest(1, 5, 6, blocks_per_id=3)
    run_prompt(store, first)
    leave(store, first)
    assert store.match(guest(2, 5, 6, blocks_per_id=3)).blocks == 6
    assert store.match(guest(3, 5, 7, blocks_per_id=3)).blocks == 3
    assert store.match(guest(4, 7, 6, blocks_per_id=3)).blocks == 0
    short = guest(5, 5, blocks_per_id=3)
    short.prompt_tokens = 2 * BLOCK + 1
    assert store.match(short).blocks == 2


def test_last_known_token_is_always_computed():
    """A prompt of exactly m full blocks hits at most m - 1 (vLLM)."""
    store = store_of(8)
    first = guest(1, 10, 11, 12)
    run_prompt(store, first)
    again = guest(2, 10, 11, 12)
    again.prompt_tokens = 3 * BLOCK
    assert store.match(again).blocks == 2


def test_own_blocks_after_preemption():
    """A request hits its own unnamed blocks when it comes back; nobody else does, and once it is over nobody can."""
    store = store_of(8)
    request = guest(1)
    request.prompt_tokens = 3 * BLOCK + 1
    store.attach(request, store.match(request))
    store.grow(request, 4, 3)
    store.release(request, 4, 3, returns=True)
    request.preemptions = 1
    assert store.match(request).blocks == 3
    other = guest(2)
    other.prompt_tokens = 3 * BLOCK + 1
    assert store.match(other).blocks == 0
    assert (store.free_blocks, store.cached_blocks) == (8, 3)


def test_seed_is_a_cache_without_references():
    """An initial state's blocks are cached and free."""
    store = store_of(8)
    store.seed(guest(1, 10, 11, 12), 2)
    assert (store.free_blocks, store.cached_blocks) == (8, 2)
    hit = store.match(guest(2, 10, 11, 12))
    assert (hit.blocks, hit.free_blocks) == (2, 2)


def test_oracle_keeps_references():
    """The oracle itself: a block with a reference is never handed out, and twins are found in order of registration."""
    pool = BlockPool(3, BLOCK)
    first, second = guest(1, 10), guest(2, 10)
    for request in (first, second):
        request.prompt_tokens = BLOCK + 1
        pool.attach(request, pool.match(request))
        pool.grow(request, 1, 0)
    for request in (first, second):
        pool.grow(request, 0, 1)
    assert pool.most_twins == 2
    pool.release(first, 1, 1, returns=False)
    hit = pool.match(guest(3, 10))
    assert (hit.blocks, hit.free_blocks) == (1, 1)
    pool.take(2)
    assert pool.evictions == [10]
    assert pool.match(guest(3, 10)).free_blocks == 0
    assert second.state is State.QUEUED
