"""The protocol that the engine core speaks to a pool of KV blocks, and the store that only counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sim.core.request import Request


@dataclass(frozen=True, slots=True)
class Hit:
    """Leading blocks of a request that are cached. A value: nothing is referenced until `BlockStore.attach`."""

    blocks: int = 0
    tokens: int = 0
    """What need not be computed. Whole blocks in most stores; a last block may be partly filled in some."""
    free_blocks: int = 0
    """Of these blocks, how many nobody references now: taking them lowers what is free."""
    runs: tuple[object, ...] = ()
    """The store's own."""


NO_HIT = Hit()


class BlockStore(Protocol):
    """A pool of equal blocks. Queries are pure; commands must fit (`free_blocks` is asked first) and fail only by bug.

    A *full* block is one whose tokens are all known and computed (or being computed). Caches differ in when they
    register one: when it is scheduled (`grow`), when it has been computed (`computed`), or when its request leaves
    (`release`).
    """

    knows_contents: bool
    """Whether it is a prefix cache; then requests need their `content`."""
    hears_computed: bool
    """Whether it wants to be told (`computed`) when a prefill chunk has run."""
    evicts_runs: bool
    """Whether many cached blocks may go where one is taken."""
    block_tokens: int
    content_tokens: int
    """Tokens per name of a request's content: block_tokens, or 1 in caches that compare token by token."""
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
        """The longest cached prefix of a request, cut to `most_blocks`, as this cache finds it.

        Takes nothing, but counts as an access: caches that evict by last use remember it.
        """

    def attach(self, request: Request, hit: Hit) -> None:
        """Reference a hit on behalf of a request that holds nothing yet."""

    def grow(self, request: Request, new_blocks: int, full_blocks: int) -> None:
        """Take `new_blocks` more for a request, of which the first `full_blocks` in all are full."""

    def computed(self, request: Request, tokens: int) -> None:
        """A forward that computed a chunk of this request has run: its first `tokens` known tokens have KV.

        May find blocks to be copies of cached ones and give them back.
        """

    def take(self, blocks: int) -> None:
        """Take blocks on behalf of decodes as a group: their contents have no name before their request leaves."""

    def release(self, request: Request, held_blocks: int, full_blocks: int, *, returns: bool) -> None:
        """Give back all blocks of a request, last block first. `returns`: it may come back and hit its own."""

    def reclaim(self) -> bool:
        """Drop some cached contents that do not count as free. False: there are none (in most stores, never)."""

    def make_blank(self, blocks: int) -> None:
        """Evict cached contents until so many blocks are blank, as far as there are any."""

    def resize(self, total_blocks: int) -> None:
        """Change the size of the pool. What goes must be free."""

    def learns_from(self, request: Request) -> bool:
        """Whether this request's output, block by block, becomes something that others may hit."""

    def seed(self, request: Request, blocks: int) -> None:
        """Put the first blocks of a request's contents into the cache, unreferenced (an initial state)."""

    def check_invariants(self, held_blocks: int) -> None:
        """used + free = total; AssertionError if not. `held_blocks`: what live requests hold, summed over requests."""


class CountingStore:
    """No sharing: one number. The baseline, and the fastest."""

    knows_contents = False
    hears_computed = False
    evicts_runs = False
    evicted_blocks = 0
    cached_blocks = 0

    def __init__(self, total_blocks: int, block_tokens: int) -> None:
        self.total_blocks = total_blocks
        self.block_tokens = self.content_tokens = block_tokens
        self.free_blocks = total_blocks
        self.evictions: list[int] | None = None

    def match(self, request: Request, *, most_blocks: int | None = None) -> Hit:
        return NO_HIT

    def attach(self, request: Request, hit: Hit) -> None:
        pass

    def computed(self, request: Request, tokens: int) -> None:
        pass

    def grow(self, request: Request, new_blocks: int, full_blocks: int) -> None:
        self.free_blocks -= new_blocks

    def take(self, blocks: int) -> None:
        self.free_blocks -= blocks

    def release(self, request: Request, held_blocks: int, full_blocks: int, *, returns: bool) -> None:
        self.free_blocks += held_blocks

    def reclaim(self) -> bool:
        return False

    def make_blank(self, blocks: int) -> None:
        pass

    def resize(self, total_blocks: int) -> None:
        self.free_blocks += total_blocks - self.total_blocks
        self.total_blocks = total_blocks

    def learns_from(self, request: Request) -> bool:
        return False

    def seed(self, request: Request, blocks: int) -> None:
        raise ValueError("a store without a prefix cache has nothing to seed: enable prefix caching")

    def check_invariants(self, held_blocks: int) -> None:
        assert 0 <= self.free_blocks <= self.total_blocks
        assert self.free_blocks + held_blocks == self.total_blocks
