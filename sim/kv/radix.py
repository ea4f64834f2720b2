"""SGLang's prefix cache, exactly, at the cost of one object per run of pages.

A block is a page. It is blank, private to a request, or in the tree; there it is protected while a request's lock is on
it, else evictable. Nothing enters the tree when it is scheduled: a prompt does once it has been computed, and an answer
when its request has finished. Who then turns out to have computed what was there already gives his copy back, so there
are no equal pages in the tree. Whole leaves are evicted, so more pages may be blank afterwards than were asked for.

Source: SGLang 0.5.23 `mem_cache/{radix_cache,common}.py`, named below function by function;
`tests/sim/kv/radix_oracle.py` restates it page by page.
"""

from __future__ import annotations

from sim.core.request import Request
from sim.kv.content import Content
from sim.kv.radix_tree import LeafQueue, RadixNode, RadixTree
from sim.kv.store import NO_HIT, Hit
from sim.policies.eviction import EvictionPolicy, LruLeaf


class Lease:
    """What a request has of the tree: everything down to the end of `node`, locked. Its other pages are private."""

    __slots__ = ("inserted", "node")

    def __init__(self, node: RadixNode) -> None:
        self.node = node
        self.inserted = 0
        """Pages that it has put in itself (`cache_inserted_len`)."""


class RadixStore:
    """A `BlockStore`: `RadixCache` and the token or page allocator below it, which is only a number here."""

    knows_contents = True
    hears_computed = True
    evicts_runs = True

    def __init__(self, total_blocks: int, block_tokens: int, eviction: EvictionPolicy | None = None) -> None:
        self.total_blocks = total_blocks
        self.block_tokens = self.content_tokens = block_tokens
        self.free_blocks = total_blocks
        self.cached_blocks = 0
        """Evictable pages, in SGLang's words."""
        self.protected_blocks = 0
        self.evicted_blocks = 0
        self.evictions: list[int] | None = None
        self._leaves = LeafQueue(eviction or LruLeaf())
        self._tree = RadixTree(self._leaves)

    @property
    def blank_blocks(self) -> int:
        """What the allocator can hand out without evicting: SGLang's available size."""
        return self.free_blocks - self.cached_blocks

    def match(self, request: Request, *, most_blocks: int | None = None) -> Hit:
        """See BlockStore. Refreshes what it finds, and splits where the match ends (`match_prefix`)."""
        limit = (request.known_tokens - 1) // self.block_tokens if most_blocks is None else most_blocks
        last = self._tree.find(_content(request), limit)
        if last is self._tree.root:
            return NO_HIT
        free = 0
        node: RadixNode | None = last
        while node is not None and not node.locks:  # whatever is above a locked node is locked
            free += node.length
            node = node.parent
        return Hit(last.end, last.end * self.block_tokens, free, (last,))

    def learns_from(self, request: Request) -> bool:
        return False

    def attach(self, request: Request, hit: Hit) -> None:
        """See BlockStore. Other matches may have split the path since: `hit` still names its deep end."""
        node = hit.runs[0] if hit.runs else self._tree.root
        assert isinstance(node, RadixNode)
        assert node.end == hit.blocks
        assert node.parent is not None or not hit.blocks, "a hit was evicted before it was attached"
        self._lock(node, below=self._tree.root)
        request.table = [Lease(node)]

    def grow(self, request: Request, new_blocks: int, full_blocks: int) -> None:
        self.take(new_blocks)

    def take(self, blocks: int) -> None:
        self.make_blank(blocks)
        self.free_blocks -= blocks

    def reclaim(self) -> bool:
        return False

    def resize(self, total_blocks: int) -> None:
        self.take(self.total_blocks - total_blocks)
        self.total_blocks = total_blocks

    def make_blank(self, blocks: int) -> None:
        """See BlockStore. Whole leaves go, so there may be more (`evict_from_tree_cache`)."""
        while self.cached_blocks and self.free_blocks - self.cached_blocks < blocks:
            leaf = self._leaves.first(len(self._tree.heads))
            self.cached_blocks -= leaf.length
            self.evicted_blocks += leaf.length
            if self.evictions is not None:
                self.evictions += [leaf.key(i) for i in reversed(range(leaf.length))]
            self._tree.remove(leaf)

    def computed(self, request: Request, tokens: int) -> None:
        lease = _lease(request)
        node = self._keep(request, lease, tokens // self.block_tokens)
        self._lock(node, below=lease.node)
        lease.node = node

    def release(self, request: Request, held_blocks: int, full_blocks: int, *, returns: bool) -> None:
        """See BlockStore (`release_kv_cache`). Who is retracted leaves only what is in the tree already."""
        lease = _lease(request)
        kept = lease.node.end if returns else full_blocks
        if not returns:
            self._keep(request, lease, full_blocks)
        self.free_blocks += held_blocks - kept
        self._unlock(lease.node)
        request.table = []

    def seed(self, request: Request, blocks: int) -> None:
        self.take(blocks)
        _, found = self._tree.insert(_content(request), blocks, priority=request.priority, counted=0)
        self.cached_blocks += blocks - found
        self.free_blocks += blocks

    def _keep(self, request: Request, lease: Lease, blocks: int) -> RadixNode:
        """Put a request's first pages in the tree, unlocked, and give its copies back; returns the end (`checkpoint`).

        SGLang then matches them once more, which changes no order.
        """
        content = _content(request)
        assert blocks >= lease.node.end
        node, found = self._tree.insert(content, blocks, priority=request.priority, counted=lease.inserted)
        self.cached_blocks += blocks - found
        self.free_blocks += blocks - lease.node.end
        lease.inserted = max(lease.inserted, blocks)
        prompt = request.prompt_tokens // self.block_tokens
        if 0 < prompt < blocks:  # answers can go without their prompts, and are less precious
            self._tree.insert(content, prompt, priority=request.priority - 1, counted=prompt)
        return node

    def _lock(self, node: RadixNode, below: RadixNode) -> None:
        """For the nodes from here up to, but without, `below` (`inc_lock_ref`)."""
        while node is not below:
            if not node.locks:
                self._protect(node.length)
            node.locks += 1
            assert node.parent is not None
            node = node.parent

    def _unlock(self, node: RadixNode) -> None:
        """From here up to the root (`dec_lock_ref`)."""
        while node.parent is not None:
            node.locks -= 1
            if not node.locks:
                self._protect(-node.length)
                if not node.num_children:
                    self._leaves.touch(node)
            node = node.parent

    def _protect(self, blocks: int) -> None:
        self.protected_blocks += blocks
        self.cached_blocks -= blocks
        self.free_blocks -= blocks

    def check_invariants(self, held_blocks: int) -> None:
        """See BlockStore: blank + evictable + protected + private = total."""
        nodes = self._tree.heads.values()
        private = held_blocks - sum(node.length * node.locks for node in nodes)
        assert private >= 0
        assert self.blank_blocks + self.cached_blocks + self.protected_blocks + private == self.total_blocks
        assert 0 <= self.cached_blocks <= self.free_blocks <= self.total_blocks
        assert self.cached_blocks == sum(node.length for node in nodes if not node.locks)
        assert self.protected_blocks == sum(node.length for node in nodes if node.locks)
        self._tree.check_invariants()


def _content(request: Request) -> Content:
    assert request.content is not None, f"{request} has no content, which a prefix cache needs"
    return request.content


def _lease(request: Request) -> Lease:
    lease = request.table[0]
    assert isinstance(lease, Lease)
    return lease
