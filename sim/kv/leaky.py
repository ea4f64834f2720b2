"""mini-runtime's KV cache manager: every block has a number, requests and the prefix tree count references to them.

A prompt enters the tree when its last chunk has run, outputs never do. What the tree holds counts as used until it is
evicted, and nothing is evicted before an allocation has failed: then the engine calls `reclaim`, a leaf at a time,
until the need fits or the tree is empty. An engine does as mini-runtime does, in its order:

1. `match`, then `attach`, before anything is reclaimed, so that what was found cannot be given away;
2. `reclaim` while the need does not fit, then `grow`, or `release` if it never fits;
3. `computed` after each chunk, the empty one of a fully cached prompt included (it may split an edge).

ENGINES.md lists one defect more, (e): allocation ignores the offset that a request has into its first block. It has no
switch because nothing follows from it: only the rest of a split edge has an offset, a request takes on that of the
first edge that gives it blocks, and before it comes to a rest it gets blocks from the edge above, or none there and
matching stops (c). The offset of every request is 0.

Sources: KIOSHIROI/mini-runtime (`kv_cache.py`, `engine.py`, 2026-08), ENGINES.md section 1 and the recordings in
`tests/golden/mini_runtime.json`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from itertools import count, islice
from typing import cast

from sim.core.request import Request
from sim.kv.content import Content
from sim.kv.leaky_tree import Edge, LeakyTree, Path, TreeDefect
from sim.kv.store import Hit


class LeakyTreeStore:
    """A `BlockStore` over a `LeakyTree`: mini-runtime's, unless some of its defects are left out."""

    knows_contents = True
    hears_computed = True
    evicts_runs = False
    content_tokens = 1
    """Tokens per name of a request's content, whatever `block_tokens` is: `content.key(i)` is the chained name of
    token i, and `shared_blocks` counts tokens."""
    offset_tokens = 0
    """mini-runtime's `matched_offset`, of every request (see above)."""
    cached_blocks = 0
    """Of the free blocks, none: what the tree holds is used."""

    def __init__(
        self, total_blocks: int, block_tokens: int, *, defects: Collection[TreeDefect] = tuple(TreeDefect)
    ) -> None:
        self.total_blocks = 0
        self.block_tokens = block_tokens
        self.free_blocks = 0
        self.evicted_blocks = 0
        self.evictions: list[int] | None = None
        """Block numbers here."""
        self.reclaims: list[list[int] | None] | None = None
        """Blocks of the leaf that each `reclaim` evicted, None where there was none, if somebody wants it: set it."""
        self._tree = LeakyTree(block_tokens, defects)
        self._numbers = count()
        self._blank: deque[int] = deque()
        self._references: Counter[int] = Counter()
        """Of every used block: one per request that has it, and the tree's."""
        self._retained: Counter[int] = Counter()
        """The tree's references alone."""
        self._unnamed: list[int] = []
        """Taken for decodes as a group."""
        self._paths: dict[Request, Path] = {}
        """Matches at admission of the requests whose prompts have not entered the tree."""
        self.resize(total_blocks)

    # -- queries

    @property
    def retained_blocks(self) -> int:
        """Blocks with a reference of the tree's, leaked ones included: all that are used once nobody runs."""
        return len(self._retained)

    @property
    def leaked_blocks(self) -> int:
        """Of the retained blocks, those that neither a match nor an eviction can reach any more."""
        reachable = {block for _, edge in self._tree.edges() for block in edge.blocks}
        return sum(block not in reachable for block in self._retained)

    def table(self, request: Request) -> list[int]:
        """Numbers of a request's blocks in order, without those taken for the group."""
        return list(cast("list[int]", request.table))

    def match(self, request: Request, *, most_blocks: int | None = None) -> Hit:
        """See BlockStore. A fully cached prompt is hit to its last token; a hit may end inside its last block."""
        limit = request.prompt_tokens
        if most_blocks is not None:
            limit = min(limit, most_blocks * self.block_tokens)
        path = self._tree.walk(_content(request), limit)
        whole = path.common // self.block_tokens
        return Hit(len(path.blocks) + whole, path.edge.stop + whole * self.block_tokens, 0, (path,))

    def learns_from(self, request: Request) -> bool:
        return False

    # -- commands

    def attach(self, request: Request, hit: Hit) -> None:
        """See BlockStore. The match says where the prompt will enter the tree, so it is kept."""
        path = cast("Path", hit.runs[0]) if hit.runs else Path(self._tree.root)
        table = [*path.blocks, *(path.partly.blocks if path.partly else ())][: hit.blocks]
        assert all(block in self._references for block in table), "a hit must be attached before anything is reclaimed"
        self._references.update(table)
        request.table = cast("list[object]", table)
        self._paths[request] = path

    def grow(self, request: Request, new_blocks: int, full_blocks: int) -> None:
        request.table += self._draw(new_blocks)

    def take(self, blocks: int) -> None:
        self._unnamed += self._draw(blocks)

    def computed(self, request: Request, tokens: int) -> None:
        """See BlockStore. A prompt enters the tree when all of it has been computed."""
        if tokens >= request.prompt_tokens and request in self._paths:
            self._insert(request, request.prompt_tokens)

    def release(self, request: Request, held_blocks: int, full_blocks: int, *, returns: bool) -> None:
        """See BlockStore, but first block first. What it holds beyond its table was taken for the group."""
        self._paths.pop(request, None)
        table = self.table(request)
        for block in [*table, *(self._unnamed.pop() for _ in range(held_blocks - len(table)))]:
            self._dereference(block)
        request.table = []

    def reclaim(self) -> bool:
        """Evict the leaf used least recently, whether or not that frees a block (see `reclaims`). False: no leaf."""
        blocks = self._tree.evict(self._may_evict)
        for block in blocks or ():
            _count_down(self._retained, block)
            self._dereference(block)
        self.evicted_blocks += len(blocks or ())
        if self.evictions is not None:
            self.evictions += blocks or ()
        if self.reclaims is not None:
            self.reclaims.append(blocks)
        return blocks is not None

    def make_blank(self, blocks: int) -> None:
        pass

    def resize(self, total_blocks: int) -> None:
        for _ in range(self.total_blocks - total_blocks):
            self._blank.pop()
        self._blank += islice(self._numbers, max(0, total_blocks - self.total_blocks))
        self.free_blocks += total_blocks - self.total_blocks
        self.total_blocks = total_blocks

    def seed(self, request: Request, blocks: int) -> None:
        hit = self.match(request, most_blocks=blocks)
        self.attach(request, hit)
        self.grow(request, blocks - hit.blocks, blocks)
        self._insert(request, min(request.prompt_tokens, blocks * self.block_tokens))
        self.release(request, blocks, blocks, returns=False)

    # -- references

    def _draw(self, blocks: int) -> list[int]:
        drawn = [self._blank.popleft() for _ in range(blocks)]
        self._references.update(drawn)
        self.free_blocks -= blocks
        return drawn

    def _dereference(self, block: int) -> None:
        _count_down(self._references, block)
        if block not in self._references:
            self._blank.append(block)
            self.free_blocks += 1

    def _insert(self, request: Request, tokens: int) -> None:
        path = self._paths.pop(request)
        gained = self._tree.insert(_content(request), path, tokens, self.table(request))
        self._references.update(gained)
        self._retained.update(gained)

    def _may_evict(self, leaf: Edge) -> bool:
        return TreeDefect.EVICTS_USED in self._tree.defects or all(
            self._references[block] == self._retained[block] for block in leaf.blocks
        )

    def check_invariants(self, held_blocks: int) -> None:
        """See BlockStore; also that every reference is a request's or the tree's, and that the tree's are there."""
        assert self.free_blocks == len(self._blank)
        assert self.free_blocks + len(self._references) == self.total_blocks
        assert self._references.keys().isdisjoint(self._blank)
        assert self._references.total() == held_blocks + self._retained.total()
        reachable = Counter(block for _, edge in self._tree.edges() for block in edge.blocks)
        assert reachable <= self._retained <= self._references


def _content(request: Request) -> Content:
    assert request.content is not None, "this store needs to know what a prompt holds"
    return request.content


def _count_down(counts: Counter[int], block: int) -> None:
    counts[block] -= 1
    if not counts[block]:
        del counts[block]
