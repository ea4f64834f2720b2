"""Random lives of requests in a block store, beside the oracle: what a core may ask of a store, in any order."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sim.core.lifecycle import State
from sim.core.request import Request
from sim.kv.content import Content
from sim.kv.store import BlockStore, Hit
from tests.sim.kv.block_pool import BlockPool


class Guest:
    """A request, twice: once for each store, because stores keep their tables in it."""

    def __init__(self, request: Request, twin: Request) -> None:
        self.request, self.twin = request, twin
        self.held = 0
        """Blocks, hits included."""
        self.computed = 0

    @property
    def runs(self) -> bool:
        return self.request.state is State.RUNNING

    def set(self, **fields: Any) -> None:
        for request in (self.request, self.twin):
            for name, value in fields.items():
                setattr(request, name, value)


class StoreMachine(RuleBasedStateMachine):
    """Plays the engine core: asks what is free first, so that every command fits."""

    caching = True

    def make_store(self, total_blocks: int, block_tokens: int) -> BlockStore:
        raise NotImplementedError

    @initialize(
        total_blocks=st.integers(1, 24),
        block_tokens=st.sampled_from((1, 2, 4, 16)),
        blocks_per_id=st.sampled_from((1, 1, 2, 3)),
    )
    def open_pool(self, total_blocks: int, block_tokens: int, blocks_per_id: int) -> None:
        self.block_tokens = block_tokens
        self.blocks_per_id = blocks_per_id
        self.store = self.make_store(total_blocks, block_tokens)
        self.oracle = BlockPool(total_blocks, block_tokens, caching=self.caching)
        self.guests: list[Guest] = []
        self.fresh_id = 0

    # -- requests

    @rule(
        blocks=st.integers(0, 8),
        rest_tokens=st.integers(1, 16),
        shared_ids=st.integers(0, 8),
        parent=st.integers(0, 20),
        common=st.integers(0, 8),
    )
    def arrive(self, blocks: int, rest_tokens: int, shared_ids: int, parent: int, common: int) -> None:
        """A prompt whose first ids may be those of another one. Its ids may name blocks of its answer, too."""
        ids: tuple[int, ...] = ()
        if self.guests:
            content = self.guests[parent % len(self.guests)].request.content
            assert content is not None
            ids = content.ids[:common]
        fresh = range(self.fresh_id, self.fresh_id + shared_ids)
        self.fresh_id += shared_ids
        ids = (*ids, *fresh)[:shared_ids]
        owner = len(self.guests) + 1
        prompt = blocks * self.block_tokens + min(rest_tokens, self.block_tokens)
        requests = [
            Request(
                f"r{owner}",
                prompt_tokens=prompt,
                max_tokens=1000,
                content=Content(
                    ids,
                    shared_blocks=len(ids) * self.blocks_per_id,
                    owner=owner,
                    blocks_per_id=self.blocks_per_id,
                ),
            )
            for _ in range(2)
        ]
        self.guests.append(Guest(*requests))

    def pick(self, number: int, *, runs: bool) -> Guest | None:
        chosen = [guest for guest in self.guests if guest.runs == runs and guest.request.state is not State.FINISHED]
        return chosen[number % len(chosen)] if chosen else None

    def any_guest(self) -> bool:
        return bool(self.guests)

    @precondition(any_guest)
    @rule(number=st.integers(0, 20), chunk=st.integers(1, 200))
    def admit(self, number: int, chunk: int) -> None:
        guest = self.pick(number, runs=False)
        if guest is None:
            return
        hit, oracle_hit = self.matches(guest)
        tokens = min(chunk, guest.request.known_tokens - hit.blocks * self.block_tokens)
        computed = hit.blocks * self.block_tokens + tokens
        held = -(-computed // self.block_tokens)
        new_blocks = held - hit.blocks
        if new_blocks + hit.free_blocks > self.store.free_blocks:
            return
        self.store.attach(guest.request, hit)
        self.store.grow(guest.request, new_blocks, computed // self.block_tokens)
        self.oracle.attach(guest.twin, oracle_hit)
        self.oracle.grow(guest.twin, new_blocks, computed // self.block_tokens)
        guest.held, guest.computed = held, computed
        guest.set(state=State.RUNNING)

    @precondition(any_guest)
    @rule(number=st.integers(0, 20), tokens=st.integers(1, 40))
    def advance(self, number: int, tokens: int) -> None:
        """A chunk of the prefill, or a few decode steps."""
        guest = self.pick(number, runs=True)
        if guest is None:
            return
        if guest.computed < guest.request.known_tokens:
            self.compute(guest, tokens)
        else:
            for _ in range(tokens):
                guest.set(outputs=guest.request.outputs + 1)
                self.compute(guest, 1)

    def compute(self, guest: Guest, tokens: int) -> None:
        """If they fit. Decoded blocks are named as they fill if the store learns from the request."""
        request = guest.request
        tokens = min(tokens, request.known_tokens - guest.computed)
        held = -(-(guest.computed + tokens) // self.block_tokens)
        if held - guest.held > self.store.free_blocks:
            return
        learns = self.store.learns_from(request)
        assert learns == self.oracle.learns_from(guest.twin)
        if guest.computed < request.prompt_tokens or learns:
            full = (guest.computed + tokens) // self.block_tokens
            self.store.grow(request, held - guest.held, full)
            self.oracle.grow(guest.twin, held - guest.held, full)
        else:
            self.store.take(held - guest.held)
            self.oracle.take(held - guest.held)
        guest.held, guest.computed = held, guest.computed + tokens

    @precondition(any_guest)
    @rule(number=st.integers(0, 20), returns=st.booleans(), unknown=st.integers(0, 1))
    def leave(self, number: int, returns: bool, unknown: int) -> None:
        """Preempted, or over. Of the newest token it may not be known yet what it was (asynchronous scheduling)."""
        guest = self.pick(number, runs=True)
        if guest is None:
            return
        full = (guest.computed - unknown) // self.block_tokens
        full = max(full, min(self.named(guest), guest.held))
        self.store.release(guest.request, guest.held, full, returns=returns)
        self.oracle.release(guest.twin, guest.held, full, returns=returns)
        guest.held = guest.computed = 0
        guest.set(
            state=State.QUEUED if returns else State.FINISHED,
            preemptions=guest.request.preemptions + returns,
            outputs=guest.request.outputs,
        )

    def named(self, guest: Guest) -> int:
        return len(guest.twin.table)

    # -- what must hold after every operation

    def matches(self, guest: Guest) -> tuple[Hit, Hit]:
        hit, oracle_hit = self.store.match(guest.request), self.oracle.match(guest.twin)
        assert (hit.blocks, hit.free_blocks) == (oracle_hit.blocks, oracle_hit.free_blocks)
        return hit, oracle_hit

    @invariant()
    def same_as_the_oracle(self) -> None:
        if not hasattr(self, "store"):
            return
        assert self.store.free_blocks == self.oracle.free_blocks
        assert self.store.cached_blocks == self.oracle.cached_blocks
        assert self.store.evicted_blocks == self.oracle.evicted_blocks
        for guest in self.guests:
            if not guest.runs and guest.request.state is not State.FINISHED:
                self.matches(guest)
        self.more_checks()

    def more_checks(self) -> None:
        """For the store's own."""

    @invariant()
    def sums_hold(self) -> None:
        """Law 4: used + free = total; what requests hold is used, shared blocks once."""
        if not hasattr(self, "store"):
            return
        held = sum(guest.held for guest in self.guests)
        self.store.check_invariants(held)
        self.oracle.check_invariants(held)

    def walk(self, seed: int, operations: int) -> None:
        """The same without hypothesis: quicker, for many lives, but nothing shrinks."""
        rng = Random(seed)
        self.open_pool(
            total_blocks=rng.randint(1, 24),
            block_tokens=rng.choice((1, 2, 4, 16)),
            blocks_per_id=rng.choice((1, 1, 2, 3)),
        )
        for _ in range(operations):
            if rng.random() < 0.15:
                self.arrive(
                    blocks=rng.randint(0, 8),
                    rest_tokens=rng.randint(1, 16),
                    shared_ids=rng.randint(0, 8),
                    parent=rng.randint(0, 20),
                    common=rng.choice((0, 3, 12)),
                )
            self.admit(number=rng.randint(0, 20), chunk=rng.choice((1, 1, 8, 200)))
            self.advance(number=rng.randint(0, 20), tokens=rng.randint(1, 40))
            if rng.random() < 0.5:
                self.leave(number=rng.randint(0, 20), returns=rng.random() < 0.6, unknown=rng.randint(0, 1))
            self.same_as_the_oracle()
            self.sums_hold()
        self.teardown()

    def teardown(self) -> None:
        """Law 4: everything is back at the end."""
        if not hasattr(self, "store"):
            return
        for guest in self.guests:
            if guest.runs:
                full = max(guest.computed // self.block_tokens, self.named(guest))
                self.store.release(guest.request, guest.held, full, returns=False)
                self.oracle.release(guest.twin, guest.held, full, returns=False)
        assert self.store.free_blocks == self.store.total_blocks
        assert self.store.cached_blocks == self.oracle.cached_blocks
