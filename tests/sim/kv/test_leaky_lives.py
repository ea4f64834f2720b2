"""The leaky tree store lives through anything, with any choice of defects (law 4)."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations
from random import Random

import pytest

from sim.core.request import Request
from sim.kv.leaky import LeakyTreeStore
from sim.kv.leaky_tree import TreeDefect
from tests.sim.kv.leaky_bench import Prompts


class Lives:
    """Random requests with common beginnings in a small store: several at a time, chunks, decodes, failures."""

    def __init__(self, seed: int, defects: Collection[TreeDefect]) -> None:
        self.rng = Random(seed)
        self.block_tokens = self.rng.choice((1, 2, 4, 16))
        self.store = LeakyTreeStore(self.rng.randint(4, 40), self.block_tokens, defects=defects)
        self.prompts = Prompts()
        self.tokens: list[tuple[int, ...]] = [()]
        self.inserted: set[tuple[int, ...]] = set()
        self.live: dict[Request, int] = {}
        """Blocks held."""
        self.known: dict[Request, tuple[int, ...]] = {}

    def prompt(self) -> tuple[int, ...]:
        parent = self.rng.choice(self.tokens)
        kept = parent[: self.rng.randint(0, len(parent))]
        more = range(self.rng.randint(0 if kept else 1, 3 * self.block_tokens + 1))
        tokens = (*kept, *(self.rng.randint(0, 1) for _ in more))
        self.tokens.append(tokens)
        return tokens

    def fits(self, blocks: int) -> bool:
        while blocks > self.store.free_blocks:
            if not self.store.reclaim():
                return False
        return True

    def admit(self) -> None:
        tokens = self.prompt()
        request = self.prompts.of_tokens(tokens)
        hit = self.store.match(request)
        self.check_hit(tokens, hit.tokens, hit.blocks)
        self.store.attach(request, hit)
        new = -(-len(tokens) // self.block_tokens) - hit.blocks
        self.live[request] = hit.blocks
        self.known[request] = tokens
        if self.fits(new):
            self.store.grow(request, new, 0)
            self.live[request] += new
        else:
            self.leave(request)

    def check_hit(self, tokens: tuple[int, ...], hit_tokens: int, hit_blocks: int) -> None:
        assert hit_blocks == -(-hit_tokens // self.block_tokens)
        assert hit_tokens <= len(tokens)
        assert hit_tokens == 0 or any(known[:hit_tokens] == tokens[:hit_tokens] for known in self.inserted)

    def best_hit(self, tokens: tuple[int, ...]) -> int:
        """Of whole blocks, as a tree without defects finds it."""
        whole = range(len(tokens) // self.block_tokens * self.block_tokens, 0, -self.block_tokens)
        return next((n for n in whole if any(known[:n] == tokens[:n] for known in self.inserted)), 0)

    def leave(self, request: Request) -> None:
        self.store.release(request, self.live.pop(request), 0, returns=False)

    def go_on(self) -> None:
        if not self.live:
            return
        request = self.rng.choice(list(self.live))
        what = self.rng.random()
        if what < 0.4:
            self.store.computed(request, request.prompt_tokens)
            self.inserted.add(self.known[request])
        elif what < 0.7:
            new = self.rng.randint(0, 2)
            if self.fits(new):
                self.live[request] += new
                if self.rng.random() < 0.5:
                    self.store.take(new)
                else:
                    self.store.grow(request, new, 0)
        else:
            self.leave(request)

    def walk(self, operations: int) -> None:
        for _ in range(operations):
            if len(self.live) < 5:
                self.admit()
            self.go_on()
            self.store.check_invariants(sum(self.live.values()))
        for request in list(self.live):
            self.leave(request)
        self.store.check_invariants(0)
        assert self.store.total_blocks - self.store.free_blocks == self.store.retained_blocks


@pytest.mark.parametrize("defects", [set(some) for n in range(6) for some in combinations(TreeDefect, n)])
def test_laws(defects: set[TreeDefect]):
    """Law 4 with any choice of defects: used + free = total always; in the end everything is back but what the tree
    retains, and that is back when it has been evicted, unless it leaked. Only (a) and (c) leak."""
    leaks = 0
    for seed in range(25):
        lives = Lives(seed, defects)
        lives.walk(80)
        while lives.store.reclaim():
            pass
        assert lives.store.retained_blocks == lives.store.leaked_blocks
        leaks += lives.store.leaked_blocks
    if not defects & {TreeDefect.INSERTS_STALE, TreeDefect.EMPTY_EDGES}:
        assert leaks == 0


def test_without_defects_the_best_prefix_is_found():
    """All switches off, it is the cache one would want: the longest run of whole blocks that was computed."""
    for seed in range(60):
        lives = Lives(seed, ())
        lives.store = LeakyTreeStore(10_000, lives.block_tokens, defects=())
        lives.walk(60)
        for tokens in lives.tokens[1:]:
            assert lives.store.match(lives.prompts.of_tokens(tokens)).tokens == lives.best_hit(tokens)
