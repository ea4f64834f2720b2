"""The radix cache in runs agrees with one number per page: hits, pools, evictions in order, whatever the ranks."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from sim.core.lifecycle import State
from sim.kv.radix import RadixStore
from sim.kv.store import BlockStore
from sim.policies.eviction import EvictionPolicy, LeastUrgentLeaf, LruLeaf, Span
from tests.sim.kv.radix_oracle import RadixOracle
from tests.sim.kv.store_machine import Guest, StoreMachine


class RadixMachine(StoreMachine):
    """Also plays the forwards, of which this store wants to hear, and looks around without admitting."""

    eviction: EvictionPolicy = LruLeaf()

    def make_store(self, total_blocks: int, block_tokens: int) -> BlockStore:
        store = RadixStore(total_blocks, block_tokens, self.eviction)
        store.evictions = []
        return store

    @initialize(
        total_blocks=st.integers(1, 24),
        block_tokens=st.sampled_from((1, 1, 2, 4)),
        blocks_per_id=st.sampled_from((1, 1, 2, 3)),
    )
    def open_pool(self, total_blocks: int, block_tokens: int, blocks_per_id: int) -> None:
        super().open_pool(total_blocks=total_blocks, block_tokens=block_tokens, blocks_per_id=blocks_per_id)
        self.oracle: Any = RadixOracle(total_blocks, block_tokens, self.eviction)
        self.unheard: dict[Guest, int] = {}
        """Tokens of prefills whose forward has not run yet."""

    def any_guest(self) -> bool:
        return bool(self.guests)

    @precondition(any_guest)
    @rule(number=st.integers(0, 20), chunk=st.integers(1, 200))
    def admit(self, number: int, chunk: int) -> None:
        guest = self.pick(number, runs=False)
        if guest is None:
            return
        guest.set(priority=self.guests.index(guest) % 3)
        super().admit(number=number, chunk=chunk)
        if guest.runs:
            self.unheard[guest] = guest.computed

    @precondition(any_guest)
    @rule(first=st.integers(0, 20), second=st.integers(0, 20))
    def admit_two(self, first: int, second: int) -> None:
        """As SGLang does: lock both hits, then take KV for both; a match may have split the hit before it."""
        chosen = {self.pick(first, runs=False): None, self.pick(second, runs=False): None}
        free = self.store.free_blocks
        joined = []
        for guest, hits in [(guest, self.matches(guest)) for guest in chosen if guest is not None]:
            held = -(-guest.request.known_tokens // self.block_tokens)
            new_blocks = held - hits[0].blocks
            if new_blocks + hits[0].free_blocks > free:
                continue
            free -= new_blocks + hits[0].free_blocks
            self.store.attach(guest.request, hits[0])
            self.oracle.attach(guest.twin, hits[1])
            joined.append((guest, new_blocks))
            guest.held, guest.computed = held, guest.request.known_tokens
            guest.set(state=State.RUNNING)
            self.unheard[guest] = guest.computed
        for guest, new_blocks in joined:
            full = guest.computed // self.block_tokens
            self.store.grow(guest.request, new_blocks, full)
            self.oracle.grow(guest.twin, new_blocks, full)

    @precondition(any_guest)
    @rule(number=st.integers(0, 20))
    def run_forward(self, number: int) -> None:
        guest = self.pick(number, runs=True)
        if guest in self.unheard:
            self.hear(guest)

    def hear(self, guest: Guest) -> None:
        tokens = self.unheard.pop(guest)
        self.store.computed(guest.request, tokens)
        self.oracle.computed(guest.twin, tokens)

    def compute(self, guest: Guest, tokens: int) -> None:
        if guest in self.unheard:
            self.hear(guest)
        before, known = guest.computed, guest.request.known_tokens
        super().compute(guest, tokens)
        if guest.computed > before and (before < guest.request.prompt_tokens or known - before > 1):
            self.unheard[guest] = guest.computed

    @precondition(any_guest)
    @rule(number=st.integers(0, 20))
    def look(self, number: int) -> None:
        guest = self.pick(number, runs=False)
        if guest is not None:
            self.matches(guest)

    @rule(blocks=st.integers(0, 30))
    def make_room(self, blocks: int) -> None:
        """SGLang's retraction evicts for the steps to come."""
        self.store.make_blank(blocks)
        self.oracle.evict(blocks)

    @precondition(any_guest)
    @rule(number=st.integers(0, 20))
    def seed_one(self, number: int) -> None:
        guest = self.pick(number, runs=False)
        if guest is not None:
            blocks = min(guest.request.content.shared_blocks, self.store.free_blocks)
            self.store.seed(guest.request, blocks)
            self.oracle.seed(guest.twin, blocks)

    @precondition(any_guest)
    @rule(number=st.integers(0, 20), returns=st.booleans(), unknown=st.integers(0, 1))
    def leave(self, number: int, returns: bool, unknown: int) -> None:
        self.unheard.pop(self.pick(number, runs=True), None)
        super().leave(number=number, returns=returns, unknown=unknown)

    def named(self, guest: Guest) -> int:
        return len(guest.twin.table[0].row)

    @invariant()
    def same_as_the_oracle(self) -> None:
        """Without looking anything up: that would refresh it."""
        if not hasattr(self, "store"):
            return
        for name in ("free_blocks", "cached_blocks", "protected_blocks", "evicted_blocks", "evictions"):
            assert getattr(self.store, name) == getattr(self.oracle, name), name

    def step(self, rng: Random) -> None:
        number = rng.randint(0, 20)
        self.admit(number=number, chunk=rng.choice((1, 4, 200)))
        self.run_forward(number=rng.randint(0, 20))
        self.advance(number=rng.randint(0, 20), tokens=rng.choice((1, 5, 40)))
        match rng.randint(0, 9):
            case 0 | 1 | 2:
                self.leave(number=number, returns=rng.random() < 0.4, unknown=rng.randint(0, 1))
            case 3 | 4:
                self.admit_two(first=number, second=number + rng.randint(0, 3))
            case 5 | 6:
                self.look(number=number)
            case 7:
                self.make_room(blocks=rng.randint(0, 8))
            case 8:
                self.seed_one(number=number)

    def walk(self, seed: int, operations: int) -> None:
        rng = Random(seed)
        self.open_pool(
            total_blocks=rng.randint(4, 40),
            block_tokens=rng.choice((1, 1, 2, 4)),
            blocks_per_id=rng.choice((1, 1, 2, 3)),
        )
        for _ in range(operations):
            if rng.random() < 0.2:
                self.arrive(
                    blocks=rng.randint(0, 8),
                    rest_tokens=rng.randint(1, 16),
                    shared_ids=rng.randint(0, 8),
                    parent=rng.randint(0, 20),
                    common=rng.choice((0, 1, 3, 12)),
                )
            if self.guests:
                self.step(rng)
            self.same_as_the_oracle()
            self.sums_hold()
        self.teardown()


class MostRecent:
    """Ranks that fall with use: what lazy queues get wrong."""

    def rank(self, span: Span, /) -> tuple[float, ...]:
        return (span.num_hits, -span.last_access)


class LeastUrgentMachine(RadixMachine):
    eviction = LeastUrgentLeaf()


class MostRecentMachine(RadixMachine):
    eviction = MostRecent()


MACHINES = (RadixMachine, LeastUrgentMachine, MostRecentMachine)
for machine in MACHINES:
    machine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None, derandomize=True)
TestRadix, TestLeastUrgent, TestMostRecent = (machine.TestCase for machine in MACHINES)


@pytest.mark.parametrize("machine", MACHINES)
def test_many_lives(machine: type[RadixMachine]):
    """The same operations over more pools and longer lives than hypothesis has patience for."""
    for seed in range(300):
        machine().walk(seed, operations=60)
