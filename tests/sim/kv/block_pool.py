"""The slow oracle of the block stores: one object per block, as vLLM keeps them. A free list, references, a hash map.

Blocks that nobody can look up yet have no owner here: `take` draws them, and whoever names or returns blocks gets some
of them. Which ones does not matter.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import count

from sim.core.request import Request
from sim.kv.store import Hit


class Block:
    def __init__(self) -> None:
        self.references = 0
        self.key: object = None
        """What it holds; None: nothing that counts as cached."""


class BlockPool:
    """A `BlockStore`. `caching` off: contents are forgotten as blocks come back."""

    def __init__(self, total_blocks: int, block_tokens: int, *, caching: bool = True) -> None:
        self.block_tokens = block_tokens
        self.total_blocks = total_blocks
        self.caching = caching
        self.free: OrderedDict[Block, None] = OrderedDict((Block(), None) for _ in range(total_blocks))
        """From the first to be handed out to the last."""
        self.by_key: dict[object, list[Block]] = {}
        """Cached blocks in order of registration."""
        self.unnamed: list[Block] = []
        self.evictions: list[int] = []
        self.evicted_blocks = 0
        self.most_twins = 0
        self._anonymous = count()

    @property
    def free_blocks(self) -> int:
        return len(self.free)

    @property
    def cached_blocks(self) -> int:
        return sum(block.key is not None for block in self.free)

    # -- queries

    def match(self, request: Request) -> Hit:
        content = request.content
        if not self.caching or content is None:
            return Hit()
        limit = (request.known_tokens - 1) // self.block_tokens
        found: list[Block] = []
        while len(found) < limit and content.key(len(found)) in self.by_key:
            found.append(self.by_key[content.key(len(found))][0])
        free = sum(block.references == 0 for block in found)
        return Hit(len(found), len(found) * self.block_tokens, free, tuple(found))

    def learns_from(self, request: Request) -> bool:
        content = request.content
        return (
            self.caching and content is not None and content.shared_blocks > request.prompt_tokens // self.block_tokens
        )

    # -- commands

    def attach(self, request: Request, hit: Hit) -> None:
        for block in hit.runs:
            assert isinstance(block, Block)
            if not block.references:
                del self.free[block]
            block.references += 1
        request.table = list(hit.runs)

    def grow(self, request: Request, new_blocks: int, full_blocks: int) -> None:
        self.take(new_blocks)
        if self.caching and request.content is not None:
            self._name(request, min(full_blocks, request.content.shared_blocks))

    def take(self, blocks: int) -> None:
        for _ in range(blocks):
            block, _ = self.free.popitem(last=False)
            assert block.references == 0, "a block with a reference was handed out"
            self._forget(block)
            block.references = 1
            self.unnamed.append(block)

    def release(self, request: Request, held_blocks: int, full_blocks: int, *, returns: bool) -> None:
        if self.caching:
            assert request.content is not None
            self._name(request, full_blocks if returns else min(full_blocks, request.content.shared_blocks))
        table: list[Block] = request.table  # type: ignore[assignment]
        nameless = [self.unnamed.pop() for _ in range(held_blocks - len(table))]
        if self.caching:
            for block in nameless[: full_blocks - len(table)]:
                block.key = ("nobody's", next(self._anonymous))
                self.by_key[block.key] = [block]
        for block in reversed([*table, *nameless]):
            block.references -= 1
            if not block.references:
                self.free[block] = None
                if block.key is None:
                    self.free.move_to_end(block, last=False)
        request.table = []

    def seed(self, request: Request, blocks: int) -> None:
        self.take(blocks)
        self._name(request, blocks)
        self.release(request, blocks, blocks, returns=True)

    # -- blocks

    def _name(self, request: Request, upto: int) -> None:
        content = request.content
        assert content is not None
        for at in range(len(request.table), upto):
            block = self.unnamed.pop()
            block.key = content.key(at)
            twins = self.by_key.setdefault(block.key, [])
            twins.append(block)
            self.most_twins = max(self.most_twins, len(twins))
            request.table.append(block)

    def _forget(self, block: Block) -> None:
        if block.key is None:
            return
        twins = self.by_key[block.key]
        twins.remove(block)
        if not twins:
            del self.by_key[block.key]
        self.evicted_blocks += 1
        if isinstance(block.key, int):
            self.evictions.append(block.key)
        block.key = None

    def check_invariants(self, held_blocks: int) -> None:
        assert all(block.references == 0 for block in self.free)
        named = [block for twins in self.by_key.values() for block in twins]
        shared = sum(block.references - 1 for block in named if block.references > 1)
        assert held_blocks - shared + len(self.free) == self.total_blocks
