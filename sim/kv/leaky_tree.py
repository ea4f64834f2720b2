"""mini-runtime's prefix tree: which blocks hold which beginnings of prompts. Every defect of it has a switch.

The tree compares tokens, not blocks: an edge is a stretch of one prompt with the blocks that hold it. Names of tokens
are chained (`Content`), so that a token is never taken for an equal one at another place. mini-runtime compares bare
tokens, and might, below an old remainder (see `TreeDefect.HIDES_OLDER`), if a prompt repeats that very token.

Where a request has matched a part of an edge and that edge is evicted before the prompt is through, the original puts
it back into the tree, with blocks that are blank or somebody else's by then: a block with two owners, which no pool can
account for. Here such a prompt enters behind the edge before, with the blocks of its own table.

Sources: KIOSHIROI/mini-runtime, `mini_runtime/cache/prefix_cache.py` (2026-08), and ENGINES.md section 1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum

from sim.kv.content import Content


class TreeDefect(Enum):
    """What is wrong with mini-runtime's tree. Letters: ENGINES.md section 1."""

    INSERTS_STALE = "inserts-stale"
    """(a) A prompt is inserted where its match at admission found it to belong. What others have put there meanwhile is
    replaced: unreachable, but still referenced by the cache. Off: it is matched again, and only what is new enters."""
    HIDES_OLDER = "hides-older"
    """(b) A split inside a block files the rest of the older edge under the first token that differs, but look-ups ask
    for the token at the block boundary and find the newer branch. Off: both lie there, and the better match wins."""
    EMPTY_EDGES = "empty-edges"
    """(c) A split before the first block boundary leaves an edge without tokens, where matching stops; the next prompt
    that begins so replaces it. Off: no block is in common, so the branches lie side by side."""
    SHARES_PARTIAL = "shares-partial"
    """(d) The last block of a prompt enters though it is not full, and a prompt that goes on from there writes into it.
    Off: only whole blocks enter."""
    EVICTS_USED = "evicts-used"
    """A leaf is evicted though requests still use its blocks, which frees nothing. Off: such leaves are passed over."""


@dataclass(slots=True, eq=False)
class Edge:
    """The tokens `start .. stop - 1` of a prompt, and what comes behind them."""

    content: Content
    start: int
    stop: int
    blocks: list[int]
    last_use: int
    lineage: object = field(default_factory=object)
    """The same for all parts of what once entered as one edge."""
    children: dict[int, list[Edge]] = field(default_factory=dict)
    """By name of the first token. Several edges under one name only if defects are off."""

    @property
    def key(self) -> int:
        return self.content.key(self.start)

    def common_tokens(self, content: Content, limit: int) -> int:
        """How many of another content's first `limit` tokens agree with this edge, whose first one does."""
        most = min(self.stop, limit) - self.start
        return most if most <= 0 else self.content.in_common(content, self.start, most)


@dataclass(frozen=True, slots=True)
class Path:
    """Where a match ended: behind `edge`, or `common` tokens into its child `partly`."""

    edge: Edge
    blocks: tuple[int, ...] = ()
    """Down to `edge`."""
    partly: Edge | None = None
    common: int = 0


class LeakyTree:
    """The tree with the given defects. It counts no references: what enters and what leaves is told by block number."""

    def __init__(self, block_tokens: int, defects: Collection[TreeDefect]) -> None:
        self.block_tokens = block_tokens
        self.defects = frozenset(defects)
        self.root = Edge(Content((), shared_blocks=0, owner=0), 0, 0, [], 0)
        self._clock = 0
        self._entered: dict[int, object] = {}
        """Of every block in the tree, the lineage of the edge that it (last) came with."""

    def walk(self, content: Content, limit: int) -> Path:
        """Match the first `limit` tokens. Every edge on the path counts as used now, the last one of them as well."""
        edge = self.root
        blocks: list[int] = []
        while edge.stop < limit:
            child, common = self._best_child(edge, content, limit)
            if child is None:
                break
            child.last_use = self._tick()
            if edge.stop + common < child.stop:
                return Path(edge, tuple(blocks), child, common)
            blocks += child.blocks
            edge = child
        return Path(edge, tuple(blocks))

    def _best_child(self, edge: Edge, content: Content, limit: int) -> tuple[Edge | None, int]:
        best, most = None, 0
        for child in edge.children.get(content.key(edge.stop), ()):
            common = child.common_tokens(content, limit)
            if common > most:
                best, most = child, common
        return best, most

    def insert(self, content: Content, path: Path, stop: int, table: list[int]) -> list[int]:
        """Put the first `stop` tokens in, held by `table`, where a match has found them to belong. Blocks gained."""
        if TreeDefect.SHARES_PARTIAL not in self.defects:
            stop -= stop % self.block_tokens
        if TreeDefect.INSERTS_STALE not in self.defects:
            path = self.walk(content, stop)
        start, held_blocks = path.edge.stop, len(path.blocks)
        above, beside = path.edge, path.partly is not None and self._is_there(path.edge, path.partly)
        if path.partly is not None and beside:
            above = self._split(path, path.partly)
            held_blocks += path.common // self.block_tokens
            start += path.common - path.common % self.block_tokens
        if start >= stop:
            return []
        branch = Edge(content, start, stop, table[held_blocks : -(-stop // self.block_tokens)], self._tick())
        self._enter(branch)
        siblings = above.children.get(branch.key, []) if beside else []
        above.children[branch.key] = [*siblings, branch]
        return branch.blocks

    def _enter(self, edge: Edge) -> None:
        self._entered.update(dict.fromkeys(edge.blocks, edge.lineage))

    def _is_there(self, above: Edge, edge: Edge) -> bool:
        """Whether an edge can be split: it lies where it lay, or (defect a) it can be put back with all behind it."""
        if edge in above.children.get(edge.key, ()):
            return True
        parts = [edge, *(below for _, below in _edges(edge))]
        return all(self._entered.get(block) is part.lineage for part in parts for block in part.blocks)

    def _split(self, path: Path, old: Edge) -> Edge:
        """Cut the edge that a match reached into at a block boundary. The edge behind which the new branch belongs."""
        whole = path.common // self.block_tokens
        boundary = old.start + whole * self.block_tokens
        cut = old.start + path.common if TreeDefect.HIDES_OLDER in self.defects else boundary
        rest = Edge(old.content, cut, old.stop, old.blocks[whole:], old.last_use, old.lineage, old.children)
        siblings = path.edge.children.get(old.key, [])
        if not whole and TreeDefect.EMPTY_EDGES not in self.defects:
            self._put_aside(path.edge, old, rest)
            return path.edge
        head = Edge(old.content, old.start, boundary, old.blocks[:whole], old.last_use, old.lineage)
        head.children[rest.key] = [rest]
        found = old in siblings  # not if the match is stale: then whatever is there now is replaced
        path.edge.children[old.key] = [head if edge is old else edge for edge in siblings] if found else [head]
        return head

    def _put_aside(self, above: Edge, old: Edge, rest: Edge) -> None:
        """Make room for a branch that has no block in common with `old`, of which `rest` is left."""
        if old not in above.children.get(old.key, ()):
            above.children.pop(old.key, None)  # stale, as above
        elif rest.start > old.start:
            _unlink(above, old)
            above.children.setdefault(rest.key, []).append(rest)
            rest.lineage = object()  # it lies elsewhere now: who matched a part of `old` shall not put it back as well
            self._enter(rest)

    def evict(self, may_evict: Callable[[Edge], bool]) -> list[int] | None:
        """Drop the leaf used least recently, the first such in the tree's order. Its blocks; None: there is no leaf."""
        oldest: tuple[Edge, Edge] | None = None
        for above, edge in self.edges():
            is_older = oldest is None or edge.last_use < oldest[1].last_use
            if is_older and not edge.children and may_evict(edge):
                oldest = above, edge
        if oldest is None:
            return None
        above, leaf = oldest
        _unlink(above, leaf)
        for block in leaf.blocks:
            self._entered.pop(block, None)
        return leaf.blocks

    def edges(self) -> Iterator[tuple[Edge, Edge]]:
        """Every edge that can be reached, behind the one above it: depth first, older siblings first."""
        return _edges(self.root)

    def _tick(self) -> int:
        self._clock += 1
        return self._clock


def _edges(top: Edge) -> Iterator[tuple[Edge, Edge]]:
    ahead = [(top, child) for child in _children(top)]
    while ahead:
        above, edge = ahead.pop()
        yield above, edge
        ahead += [(edge, child) for child in _children(edge)]


def _children(edge: Edge) -> list[Edge]:
    """Last one first."""
    return [child for siblings in edge.children.values() for child in siblings][::-1]


def _unlink(above: Edge, child: Edge) -> None:
    siblings = above.children[child.key]
    siblings.remove(child)
    if not siblings:
        del above.children[child.key]
