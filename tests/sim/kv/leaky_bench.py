"""What tests of the leaky tree store share: prompts of known tokens, and a store that serves them one at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sim.core.request import Request
from sim.kv.content import Content
from sim.kv.leaky import LeakyTreeStore
from sim.kv.leaky_tree import TreeDefect

BLOCK = 16


class Prompts:
    """Requests of which token ids are known; a name stands for a token and all before it."""

    def __init__(self) -> None:
        self.names: dict[tuple[int, int], int] = {}
        self.requests = 0

    def of_tokens(self, tokens: Iterable[int]) -> Request:
        ids, name = [], -1
        for token in tokens:
            name = self.names.setdefault((name, token), len(self.names))
            ids.append(name)
        self.requests += 1
        content = Content(tuple(ids), shared_blocks=len(ids), owner=self.requests)
        return Request(f"r{self.requests}", prompt_tokens=len(ids), max_tokens=99, content=content)

    def of(self, *segments: Collection[int]) -> Request:
        """Segments as in the recordings: [namespace, first token, length]."""
        return self.of_tokens(space * 100000 + first + at for space, first, length in segments for at in range(length))


def blocks_of(tokens: int) -> int:
    return -(-tokens // BLOCK)


class Bench:
    """A store, and requests that go through it one at a time."""

    def __init__(self, *without: TreeDefect, total_blocks: int = 64) -> None:
        self.store = LeakyTreeStore(total_blocks, BLOCK, defects={*TreeDefect} - {*without})
        self.prompts = Prompts()

    def hit(self, *segments: Collection[int]) -> int:
        """Tokens found cached."""
        return self.store.match(self.prompts.of(*segments)).tokens

    def admit(self, *segments: Collection[int]) -> Request:
        request = self.prompts.of(*segments)
        hit = self.store.match(request)
        self.store.attach(request, hit)
        self.store.grow(request, blocks_of(request.prompt_tokens) - hit.blocks, 0)
        return request

    def compute(self, request: Request) -> None:
        self.store.computed(request, request.prompt_tokens)

    def leave(self, request: Request) -> None:
        self.store.release(request, len(self.store.table(request)), 0, returns=False)

    def serve(self, *segments: Collection[int]) -> None:
        request = self.admit(*segments)
        self.compute(request)
        self.leave(request)

    def reclaim(self) -> list[int] | None:
        self.store.reclaims = []
        assert self.store.reclaim() == (self.store.reclaims != [None])
        return self.store.reclaims[0]

    def counts(self) -> tuple[int, int]:
        self.store.check_invariants(0)
        return self.store.retained_blocks, self.store.leaked_blocks
