"""vLLM V1's prefix cache, exactly, at the cost of one object per *run* of blocks instead of one per block.

Only full blocks are cached, under a hash chained from the start. With full attention the cached blocks of a chain are
therefore always a prefix of it: a deeper block is released, and so evicted, before a shallower one. Three facts follow.

- A run of consecutive blocks behaves as one: it is found by the key of its first block, and comparing the keys of two
  blocks compares everything before them.
- The free list is a number of blank blocks (handed out first) and a queue of unreferenced runs, each eaten from its
  deep end. Physical block numbers do not matter.
- Two requests that compute the same content side by side hold *twins*: runs over the same keys, of which the first
  registered is found by look-ups until it is evicted; then the next one is (vLLM does not merge equal blocks). Runs are
  split so that twins always cover exactly the same blocks.

Blocks that no other request can ever hit (unknown outputs, prompts without ids) are only counted while their request
runs and become a run when it leaves. Source: golden recordings of vLLM 0.32.0; `tests/sim/kv/block_pool.py` is the slow
per-block oracle.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sim.core.request import Request
from sim.kv.content import Content
from sim.kv.store import NO_HIT, Hit


class BlockRun:
    """Consecutive full blocks `start .. start + length - 1` of one content, referenced or released together."""

    __slots__ = ("above", "content", "length", "newer", "older", "refs", "start", "twins")

    def __init__(self, content: Content | None, start: int, length: int, refs: int) -> None:
        self.content = content
        """None: nobody can hit it (its request has ended and nothing in it is shared)."""
        self.start = start
        self.length = length
        self.refs = refs
        self.above: BlockRun | None = None
        """The run that was split off this one's head: who held this one before the split holds that one too."""
        self.twins: list[BlockRun] | None = None
        """All runs over these same keys in order of registration, itself included; None without another."""
        self.older: BlockRun | None = None
        self.newer: BlockRun | None = None

    def key(self, offset: int) -> int:
        assert self.content is not None
        return self.content.key(self.start + offset)


class ReleaseOrder:
    """Unreferenced runs from the first to be evicted to the last: a linked list, because splits insert in it."""

    __slots__ = ("end",)

    def __init__(self) -> None:
        self.end = BlockRun(None, 0, 0, 0)
        self.end.older = self.end.newer = self.end

    def first(self) -> BlockRun:
        run = self.end.newer
        assert run is not None
        assert run is not self.end, "evicting from a cache without unreferenced runs"
        return run

    def append(self, run: BlockRun) -> None:
        assert self.end.older is not None
        self.insert_after(self.end.older, run)

    def insert_after(self, older: BlockRun, run: BlockRun) -> None:
        newer = older.newer
        assert newer is not None
        run.older, run.newer = older, newer
        older.newer = newer.older = run

    def remove(self, run: BlockRun) -> None:
        assert run.older is not None
        assert run.newer is not None
        run.older.newer, run.newer.older = run.newer, run.older
        run.older = run.newer = None

    def __iter__(self) -> Any:
        run = self.end.newer
        while run is not None and run is not self.end:
            yield run
            run = run.newer


class HashedStore:
    """Blocks with identity: hash chain, reference counts, eviction by time of release."""

    knows_contents = True
    hears_computed = False
    evicts_runs = False

    def __init__(self, total_blocks: int, block_tokens: int) -> None:
        self.total_blocks = total_blocks
        self.block_tokens = self.content_tokens = block_tokens
        self.free_blocks = total_blocks
        self.cached_blocks = 0
        self.evicted_blocks = 0
        self.evictions: list[int] | None = None
        self._heads: dict[int, BlockRun] = {}
        """Key of a run's first block -> the first registered of the runs over it."""
        self._order = ReleaseOrder()

    # -- queries

    def match(self, request: Request, *, most_blocks: int | None = None) -> Hit:
        content = request.content
        if content is None or not (content.shared_blocks or request.preemptions):
            return NO_HIT
        limit = (request.known_tokens - 1) // self.block_tokens if most_blocks is None else most_blocks
        found, free, at = [], 0, 0
        while at < limit:
            run = self._heads.get(content.key(at))
            if run is None:
                break
            blocks = self._common(run, content, at, limit)
            found.append((run, blocks))
            free += 0 if run.refs else blocks
            at += blocks  # within the run too: it may have grown past a point where others had branched off
        return Hit(at, at * self.block_tokens, free, tuple(found)) if found else NO_HIT

    def _common(self, run: BlockRun, content: Content, at: int, limit: int) -> int:
        """Blocks from `at` on that the run, which starts there, has in common with the content. At least 1."""
        most = min(run.length, limit - at)
        assert run.content is not None
        return run.content.in_common(content, at, most)

    def learns_from(self, request: Request) -> bool:
        content = request.content
        return content is not None and content.shared_blocks > request.prompt_tokens // self.block_tokens

    # -- commands

    def attach(self, request: Request, hit: Hit) -> None:
        table: list[tuple[BlockRun, int]] = []
        found: tuple[tuple[BlockRun, int], ...] = hit.runs  # type: ignore[assignment]
        for run, blocks in found:
            held = run if blocks == run.length else self._split(run, blocks)
            self._reference(held)
            table.append((held, held.start))
        request.table = table  # type: ignore[assignment]

    def computed(self, request: Request, tokens: int) -> None:
        pass

    def grow(self, request: Request, new_blocks: int, full_blocks: int) -> None:
        self.take(new_blocks)
        content = request.content
        if content is not None and content.shared_blocks:
            self._register(request, content, min(full_blocks, content.shared_blocks))

    def take(self, blocks: int) -> None:
        self.free_blocks -= blocks
        missing = self.cached_blocks - self.free_blocks
        if missing > 0:
            self._evict(missing)

    def release(self, request: Request, held_blocks: int, full_blocks: int, *, returns: bool) -> None:
        content = request.content
        assert content is not None
        self._register(request, content, full_blocks if returns else min(full_blocks, content.shared_blocks))
        table: list[tuple[BlockRun, int]] = request.table  # type: ignore[assignment]
        named = table[-1][0].start + table[-1][0].length if table else 0
        self.free_blocks += held_blocks - full_blocks
        if full_blocks > named:
            self._dereference(BlockRun(None, named, full_blocks - named, 1))
        for run, start in reversed(table):
            self._dereference(run)
            while run.start > start:
                assert run.above is not None
                run = run.above
                self._dereference(run)
        request.table = []

    def reclaim(self) -> bool:
        return False

    def make_blank(self, blocks: int) -> None:
        missing = min(blocks, self.free_blocks) - (self.free_blocks - self.cached_blocks)
        if missing > 0:
            self._evict(missing)

    def resize(self, total_blocks: int) -> None:
        self.take(self.total_blocks - total_blocks)
        self.total_blocks = total_blocks

    def seed(self, request: Request, blocks: int) -> None:
        content = request.content
        assert content is not None
        self.take(blocks)
        self._register(request, content, blocks)
        self.release(request, blocks, blocks, returns=True)

    # -- runs

    def _reference(self, run: BlockRun) -> None:
        if run.refs == 0:
            self._order.remove(run)
            self.cached_blocks -= run.length
            self.free_blocks -= run.length
        run.refs += 1

    def _dereference(self, run: BlockRun) -> None:
        run.refs -= 1
        if run.refs == 0:
            self._order.append(run)
            self.cached_blocks += run.length
            self.free_blocks += run.length

    def _register(self, request: Request, content: Content, upto: int) -> None:
        """Name the request's blocks up to `upto`, which it holds already."""
        table: list[tuple[BlockRun, int]] = request.table  # type: ignore[assignment]
        last = table[-1][0] if table else None
        at = last.start + last.length if last is not None else 0
        while at < upto:
            first = self._heads.get(content.key(at))
            if first is not None:
                last = self._add_twin(first, content, at, upto)
                table.append((last, at))
            elif last is not None and last.content is content and last.refs == 1 and last.twins is None:
                last.length += upto - at
            else:  # nothing deeper can be cached either
                last = BlockRun(content, at, upto - at, 1)
                self._heads[content.key(at)] = last
                table.append((last, at))
            at = last.start + last.length

    def _add_twin(self, first: BlockRun, content: Content, at: int, upto: int) -> BlockRun:
        """Hold blocks whose keys are registered already, as far as `first` covers them."""
        blocks = self._common(first, content, at, upto)
        if blocks < first.length:
            first = self._split(first, blocks)
        twin = BlockRun(content, at, blocks, 1)
        if first.twins is None:
            first.twins = [first]
        first.twins.append(twin)
        twin.twins = first.twins
        return twin

    def _split(self, run: BlockRun, blocks: int) -> BlockRun:
        """Cut the first `blocks` blocks off a run, and off its twins; returns the new head. The tail stays itself."""
        heads = [self._split_one(each, blocks) for each in run.twins or (run,)]
        if run.twins is not None:
            for head in heads:
                head.twins = heads
        if run.content is not None:
            self._heads[run.key(0)] = (run.twins or [run])[0]
            self._heads[heads[0].key(0)] = heads[0]
        return heads[(run.twins or [run]).index(run)]

    def _split_one(self, tail: BlockRun, blocks: int) -> BlockRun:
        head = BlockRun(tail.content, tail.start, blocks, tail.refs)
        head.above, tail.above = tail.above, head
        tail.start += blocks
        tail.length -= blocks
        if tail.refs == 0:
            self._order.insert_after(tail, head)
        return head

    def _evict(self, blocks: int) -> None:
        """Drop the contents of the unreferenced blocks released first. They count as taken already."""
        self.cached_blocks -= blocks
        self.evicted_blocks += blocks
        while blocks:
            run = self._order.first()
            if run.length > blocks and run.twins is not None:
                self._split(run, run.length - blocks)
            eaten = min(blocks, run.length)
            blocks -= eaten
            if self.evictions is not None and run.content is not None:
                self.evictions += [run.key(i) for i in range(run.length - 1, run.length - eaten - 1, -1)]
            if eaten < run.length:
                run.length -= eaten
            else:
                self._order.remove(run)
                self._drop(run)

    def _drop(self, run: BlockRun) -> None:
        """A run's contents are gone; a twin that was hidden behind it is found from now on."""
        if run.content is None:
            return
        twins = run.twins
        if twins is None:
            del self._heads[run.key(0)]
            return
        if twins[0] is run:
            self._heads[run.key(0)] = twins[1]
        twins.remove(run)
        if len(twins) == 1:
            twins[0].twins = None

    def _named_runs(self) -> Iterator[BlockRun]:
        for run in self._heads.values():
            yield from run.twins or (run,)

    def check_invariants(self, held_blocks: int) -> None:
        """See BlockStore; also that every unreferenced run is in the queue once and no other."""
        queued = list(self._order)
        assert all(run.refs == 0 for run in queued)
        assert sum(run.length for run in queued) == self.cached_blocks
        assert 0 <= self.cached_blocks <= self.free_blocks <= self.total_blocks
        shared = sum((run.refs - 1) * run.length for run in self._named_runs() if run.refs > 1)
        assert self.free_blocks + held_blocks - shared == self.total_blocks
        for key, run in self._heads.items():
            assert run.key(0) == key
            assert run.length > 0
            for twin in run.twins or ():
                assert (twin.start, twin.length, twin.key(0)) == (run.start, run.length, key)
