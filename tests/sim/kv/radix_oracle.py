"""The slow oracle of the radix store: SGLang's tree restated with one number per page, a dict of children and a heap.

It knows where every page is, so it notices a page that is in two places, is lost, or is evicted while somebody uses it.
"""

from __future__ import annotations

import heapq
from itertools import count

from sim.core.request import Request
from sim.kv.store import Hit
from sim.policies.eviction import EvictionPolicy


class Node:
    """SGLang's `TreeNode`. Its key is a list of page names, each standing for the page and all before it."""

    def __init__(self, clock: count[int], parent: Node | None, key: list[int], pages: list[int], priority: int) -> None:
        self.parent = parent
        self.key, self.pages = key, pages
        self.children: dict[int, Node] = {}
        self.locks = self.num_hits = 0
        self.priority = priority
        self.last_access = next(clock)

    @property
    def length(self) -> int:
        return len(self.key)

    def below(self) -> list[Node]:
        return [self, *(node for child in self.children.values() for node in child.below())]


class Lease:
    """What SGLang keeps in a request: its row of pages as far as they are named, and its place in the tree."""

    def __init__(self, node: Node, row: list[int]) -> None:
        self.node, self.row = node, row
        self.inserted = 0


class RadixOracle:
    """A `BlockStore`."""

    def __init__(self, total_blocks: int, block_tokens: int, eviction: EvictionPolicy) -> None:
        self.block_tokens, self.total_blocks = block_tokens, total_blocks
        self.eviction = eviction
        self.clock = count()
        self.root = Node(self.clock, None, [], [], 0)
        self.blank = list(range(total_blocks))
        self.unnamed: list[int] = []
        """Private pages: whose they are does not matter."""
        self.evictions: list[int] = []

    def in_tree(self, *, locked: bool) -> int:
        return sum(node.length for node in self.root.below() if bool(node.locks) == locked)

    @property
    def free_blocks(self) -> int:
        return len(self.blank) + self.cached_blocks

    @property
    def cached_blocks(self) -> int:
        return self.in_tree(locked=False)

    @property
    def protected_blocks(self) -> int:
        return self.in_tree(locked=True)

    @property
    def evicted_blocks(self) -> int:
        return len(self.evictions)

    # -- queries

    def match(self, request: Request) -> Hit:
        keys = self.keys(request, (request.known_tokens - 1) // self.block_tokens)
        node, pages = self.match_prefix(keys)
        free, at = 0, node
        while at is not self.root:
            free += 0 if at.locks else at.length
            assert at.parent is not None
            at = at.parent
        return Hit(len(pages), len(pages) * self.block_tokens, free, (node, pages))

    def learns_from(self, request: Request) -> bool:
        return False

    def keys(self, request: Request, blocks: int) -> list[int]:
        assert request.content is not None
        return [request.content.key(i) for i in range(blocks)]

    # -- commands

    def attach(self, request: Request, hit: Hit) -> None:
        node, pages = hit.runs if hit.runs else (self.root, [])
        assert isinstance(node, Node)
        assert isinstance(pages, list)
        self.lock(node, 1)
        request.table = [Lease(node, list(pages))]

    def grow(self, request: Request, new_blocks: int, full_blocks: int) -> None:
        self.take(new_blocks)

    def take(self, blocks: int) -> None:
        self.evict(blocks)
        for _ in range(blocks):
            self.unnamed.append(self.blank.pop())

    def evict(self, blocks: int) -> None:
        """`evict_from_tree_cache`, `RadixCache.evict`."""
        wanted = blocks - len(self.blank)
        leaves = [node for node in self.root.below() if self.is_leaf(node)]
        heap = [(self.eviction.rank(node), node.last_access, node) for node in leaves]
        heapq.heapify(heap)
        evicted = 0
        while evicted < wanted and heap:
            *_, leaf = heapq.heappop(heap)
            evicted += leaf.length
            self.blank += leaf.pages
            self.evictions += reversed(leaf.key)
            parent = leaf.parent
            assert parent is not None
            del parent.children[leaf.key[0]]
            if self.is_leaf(parent):
                heapq.heappush(heap, (self.eviction.rank(parent), parent.last_access, parent))

    def is_leaf(self, node: Node) -> bool:
        return node is not self.root and not node.children and not node.locks

    def checkpoint(self, request: Request, blocks: int) -> None:
        """`RadixCache.checkpoint`, `_insert_cache`."""
        lease = request.table[0]
        assert isinstance(lease, Lease)
        protected = len(lease.row)
        row = lease.row + [self.unnamed.pop() for _ in range(blocks - protected)]
        keys = self.keys(request, blocks)
        found = self.insert(keys, row, request.priority, lease.inserted)
        lease.inserted = max(lease.inserted, blocks)
        prompt = request.prompt_tokens // self.block_tokens
        if 0 < prompt < blocks:
            self.insert(keys[:prompt], row[:prompt], request.priority - 1, prompt)
        self.blank += row[protected:found]
        node, lease.row = self.match_prefix(keys)
        assert len(lease.row) == blocks
        self.lock(lease.node, -1)
        self.lock(node, 1)
        lease.node = node

    def computed(self, request: Request, tokens: int) -> None:
        self.checkpoint(request, tokens // self.block_tokens)

    def release(self, request: Request, held_blocks: int, full_blocks: int, *, returns: bool) -> None:
        """`release_kv_cache`."""
        if not returns:
            self.checkpoint(request, full_blocks)
        lease = request.table[0]
        assert isinstance(lease, Lease)
        self.blank += [self.unnamed.pop() for _ in range(held_blocks - len(lease.row))]
        self.lock(lease.node, -1)
        request.table = []

    def seed(self, request: Request, blocks: int) -> None:
        self.take(blocks)
        row = [self.unnamed.pop() for _ in range(blocks)]
        self.blank += row[: self.insert(self.keys(request, blocks), row, request.priority, 0)]

    # -- the tree

    def match_prefix(self, key: list[int]) -> tuple[Node, list[int]]:
        """`_match_prefix_helper`."""
        now = next(self.clock)
        node, pages = self.root, []
        while key and key[0] in node.children:
            child = node.children[key[0]]
            child.last_access = now
            common = common_pages(child.key, key)
            if common < child.length:
                node = self.split(child, common)
                return node, pages + node.pages
            node, key = child, key[common:]
            pages += node.pages
        return node, pages

    def insert(self, key: list[int], pages: list[int], priority: int, counted: int) -> int:
        """`_insert_helper`."""
        now = next(self.clock)
        node, found = self.root, 0
        while key and key[0] in node.children:
            node = node.children[key[0]]
            node.last_access = now
            common = common_pages(node.key, key)
            found, key, pages = found + common, key[common:], pages[common:]
            if common < node.length:
                node = self.split(node, common)
            node.priority = min(node.priority, priority)
            node.num_hits += found > counted
        if key:
            leaf = node.children[key[0]] = Node(self.clock, node, key, pages, priority)
            leaf.num_hits = int(found + len(key) > counted)
        return found

    def split(self, child: Node, at: int) -> Node:
        """`_split_node`."""
        head = Node(self.clock, child.parent, child.key[:at], child.pages[:at], child.priority)
        head.locks, head.num_hits = child.locks, child.num_hits
        head.children = {child.key[at]: child}
        assert child.parent is not None
        child.parent.children[head.key[0]] = head
        child.parent, child.key, child.pages = head, child.key[at:], child.pages[at:]
        return head

    def lock(self, node: Node, difference: int) -> None:
        while node is not self.root:
            node.locks += difference
            assert node.locks >= 0
            assert node.parent is not None
            node = node.parent

    def check_invariants(self, held_blocks: int) -> None:
        tree = [page for node in self.root.below() for page in node.pages]
        assert sorted([*tree, *self.blank, *self.unnamed]) == list(range(self.total_blocks))
        assert held_blocks == len(self.unnamed) + sum(node.length * node.locks for node in self.root.below())


def common_pages(one: list[int], other: list[int]) -> int:
    common = 0
    while common < min(len(one), len(other)) and one[common] == other[common]:
        common += 1
    return common
