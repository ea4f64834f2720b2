"""The protocol that the engine core speaks to a pool of KV blocks, and the store that only counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sim.core.request import Request


@dataclass(frozen=True, slots=True)
class Hit:
    """Leading blocks of a request that are cached. A value: nothing is referenced until `BlockStore.admit`."""

    blocks: int = 0
    free_blocks: int = 0
    """Of these, how many nobody references now: taking them lowers what is free."""
    runs: tuple[object, ...] = ()
    """The store's own."""


NO_HIT = Hit()


class BlockStore(Protocol):
    """A pool of equal blocks. Queries are pure; commands must fit (`free_blocks` is asked first) and fail only by bug.

    A *full* block is one whose tokens are all known and computed (or being computed): prefix caches register it.
    """

    knows_contents: bool
    """Whether it is a prefix cache; then requests need their `content`."""
    block_tokens: int
    total_blocks: int
    free_blocks: int
    """Blocks that could be taken now: blank ones and cached ones without a reference."""
    evictions: list[int] | None
    """Keys of evicted blocks in order, if somebody wants them: set it to a list."""

    @property
    def cached_blocks(self) -> int:
        """Of the free blocks, how many hold cached contents."""

    @property
    def evicted_blocks(self) -> int:
        """Cached blocks that lost their contents so far."""

    def match(self, request: Request, *, most_blocks: int | None = None) -> Hit:
        """The longest cached prefix that leaves at least one known token to compute, cut to `most_blocks`. Pure."""

    def admit(self, request: Request, hit: Hit, new_blocks: int, full_blocks: int) -> None:
        """Reference the hit, take `new_blocks` behind it and register the first `full_blocks` blocks."""

    def grow(self, request: Request, new_blocks: int, full_blocks: int) -> None:
        """Take `new_blocks` more for a request and register its first `full_blocks` blocks."""

    def take(self, blocks: int) -> None:
        """Take blocks on behalf of decodes as a group: their contents have no name before their request leaves."""

    def release(self, request: Request, held_blocks: int, full_blocks: int, *, returns: bool) -> None:
        """Give back all blocks of a request, last block first. `returns`: it may come back and hit its own."""

    def learns_from(self, request: Request) -> bool:
        """Whether this request's output, block by block, becomes something that others may hit."""

    def seed(self, request: Request, blocks: int) -> None:
        """Put the first blocks of a request's contents into the cache, unreferenced (an initial state)."""

    def check_invariants(self, held_blocks: int) -> None:
        """used + free = total; AssertionError if not. `held_blocks`: what live requests hold, summed over requests."""


class CountingStore:
    """No sharing: one number. The baseline, and the fastest."""

    knows_contents = False
    evicted_blocks = 0
    cached_blocks = 0

    def __init__(self, total_blocks: int, block_tokens: int) -> None:
        self.total_blocks = total_blocks
        self.block_tokens = block_tokens
        self.free_blocks = total_blocks
        self.evictions: list[int] | None = None

    def match(self, request: Request, *, most_blocks: int | None = None) -> Hit:
        return NO_HIT

    def admit(self, request: Request, hit: Hit, new_blocks: int, full_blocks: int) -> None:
        self.free_blocks -= new_blocks

    def grow(self, request: Request, new_blocks: int, full_blocks: int) -> None:
        self.free_blocks -= new_blocks

    def take(self, blocks: int) -> None:
        self.free_blocks -= blocks

    def release(self, request: Request, held_blocks: int, full_blocks: int, *, returns: bool) -> None:
        self.free_blocks += held_blocks

    def learns_from(self, request: Request) -> bool:
        return False

    def seed(self, request: Request, blocks: int) -> None:
        raise ValueError("a store without a prefix cache has nothing to seed: enable prefix caching")

    def check_invariants(self, held_blocks: int) -> None:
        assert 0 <= self.free_blocks <= self.total_blocks
        assert self.free_blocks + held_blocks == self.total_blocks
