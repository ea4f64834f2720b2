"""A radix tree over runs of pages, and the order in which its leaves are evicted: SGLang's, without the pages.

Page keys are chained, so the key of a node's first page finds it without going through its parents, and comparing two
keys compares everything before them. Source: SGLang 0.5.23 `mem_cache/radix_cache.py` (`TreeNode`, `RadixCache`), named
below function by function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count

from sim.kv.content import Content
from sim.policies.eviction import EvictionPolicy


class RadixNode:
    """Consecutive pages `start .. end - 1` of one content. A split leaves the deeper part in the same object."""

    __slots__ = ("content", "last_access", "length", "locks", "num_children", "num_hits", "parent", "priority", "start")

    def __init__(
        self, parent: RadixNode | None, content: Content, *, start: int, length: int, priority: int, last_access: int
    ) -> None:
        self.parent = parent
        """None: the root, or evicted."""
        self.content = content
        self.start = start
        self.length = length
        self.priority = priority
        self.last_access = last_access
        self.num_children = 0
        self.num_hits = 0
        self.locks = 0
        """Requests that use it or anything below it."""

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def evictable(self) -> bool:
        return not self.locks and not self.num_children and self.parent is not None

    def key(self, offset: int) -> int:
        return self.content.key(self.start + offset)

    def common(self, content: Content, most: int) -> int:
        """Pages of this node, whose first page the content has, that the content has in all; looks at `most`."""
        return self.content.in_common(content, self.start, most)


class LeafQueue:
    """Evictable leaves by rank. Ranks are looked at only when one must go, as often as something has changed since.

    SGLang builds a heap of all leaves each time (`RadixCache.evict`); the order is the same.
    """

    def __init__(self, eviction: EvictionPolicy) -> None:
        self._eviction = eviction
        self._touched: dict[RadixNode, None] = {}
        """Nodes that may have become evictable leaves, or changed their rank as such, since the last look."""
        self._heap: list[tuple[tuple[float, ...], int, int, RadixNode]] = []
        """(rank, last access, number of the entry, node). Whatever changes a node's rank is an access, too."""
        self._entries = count()

    def touch(self, node: RadixNode) -> None:
        self._touched[node] = None

    def first(self, num_nodes: int) -> RadixNode:
        """The leaf to evict; it leaves the queue. There must be one among the tree's `num_nodes` nodes."""
        if len(self._heap) > 4 * num_nodes + 64:  # mostly outdated: start again, so that it cannot grow without end
            self._touched.update((entry[-1], None) for entry in self._heap)
            self._heap.clear()
        for node in self._touched:
            if node.evictable:
                heappush(self._heap, (self._eviction.rank(node), node.last_access, next(self._entries), node))
        self._touched.clear()
        while True:
            _, last_access, _, node = heappop(self._heap)
            if node.evictable and last_access == node.last_access:  # else the entry is outdated
                return node


class RadixTree:
    """What is cached and when it was last looked at; knows nothing of the pool."""

    def __init__(self, leaves: LeafQueue) -> None:
        self.leaves = leaves
        self.heads: dict[int, RadixNode] = {}
        """Key of a node's first page -> the node; the root is not in it."""
        self._clock = count(1)
        """Of accesses. As in SGLang a leaf is younger than what the access that made it came by."""
        nothing = Content((), shared_blocks=0, owner=0)
        self.root = RadixNode(None, nothing, start=0, length=0, priority=0, last_access=0)

    def find(self, content: Content, blocks: int) -> RadixNode:
        """Where the longest cached prefix of at most `blocks` pages ends: splits there (`_match_prefix_helper`)."""
        path = list(self._walk(content, blocks))
        return path[-1] if path else self.root

    def insert(self, content: Content, blocks: int, *, priority: int, counted: int) -> tuple[RadixNode, int]:
        """Have the first pages in the tree. Returns where they end, and how many were there (`_insert_helper`).

        Up to page `counted` the same request has been here before, so that is no further hit.
        """
        node, found = self.root, 0
        for node in self._walk(content, blocks):
            found = node.end
            node.priority = min(node.priority, priority)
            node.num_hits += found > counted
        if found < blocks:
            node.num_children += 1
            node = RadixNode(
                node, content, start=found, length=blocks - found, priority=priority, last_access=next(self._clock)
            )
            node.num_hits = 1
            self.heads[node.key(0)] = node
            self.leaves.touch(node)
        return node, found

    def remove(self, leaf: RadixNode) -> None:
        """Evict it (`_delete_leaf`)."""
        parent = leaf.parent
        assert parent is not None
        del self.heads[leaf.key(0)]
        leaf.parent = None
        parent.num_children -= 1
        if not parent.num_children:
            self.leaves.touch(parent)

    def _walk(self, content: Content, blocks: int) -> Iterator[RadixNode]:
        """One access: the nodes over the first `blocks` pages, as far as there are, the last one cut to fit."""
        now = next(self._clock)
        at = 0
        while at < blocks:
            node = self.heads.get(content.key(at))
            if node is None:
                return
            node.last_access = now
            if not node.num_children:
                self.leaves.touch(node)
            common = node.common(content, min(node.length, blocks - at))
            if common < node.length:
                node = self._split(node, common)
            at = node.end
            yield node

    def _split(self, node: RadixNode, blocks: int) -> RadixNode:
        """Cut the first pages off; returns them, the parent of the rest from now on (`_split_node`)."""
        head = RadixNode(
            node.parent,
            node.content,
            start=node.start,
            length=blocks,
            priority=node.priority,
            last_access=node.last_access,
        )
        head.locks, head.num_hits, head.num_children = node.locks, node.num_hits, 1
        node.parent = head
        node.start += blocks
        node.length -= blocks
        self.heads[head.key(0)] = head
        self.heads[node.key(0)] = node
        return head

    def check_invariants(self) -> None:
        """It is a tree, its nodes are found by their keys, and whatever is above a locked node is locked."""
        num_children = Counter(node.parent for node in self.heads.values())
        for key, node in self.heads.items():
            parent = node.parent
            assert parent is not None
            assert node.key(0) == key
            assert node.length > 0
            assert node.start == parent.end
            assert parent is self.root or parent.locks >= node.locks
            assert node.num_children == num_children[node]
