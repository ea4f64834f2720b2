"""mini-runtime's prefix tree: one made case per defect, with it and without, and what a store must do besides."""

from __future__ import annotations

import pytest

from sim.kv.leaky_tree import TreeDefect
from sim.kv.store import NO_HIT, BlockStore
from tests.sim.kv.leaky_bench import Bench


@pytest.mark.parametrize(
    ("without", "counts"),
    [((), (8, 4)), ((TreeDefect.INSERTS_STALE,), (4, 0))],
)
def test_stale_insert(without: tuple[TreeDefect, ...], counts: tuple[int, int]):
    """(a) Twins admitted together: the second one's four blocks replace the first one's, which no eviction finds."""
    bench = Bench(*without)
    twins = [bench.admit((1, 0, 64)) for _ in range(2)]
    for request in twins:
        bench.compute(request)
    for request in twins:
        bench.leave(request)
    assert bench.counts() == counts
    while bench.store.reclaim():
        pass
    assert bench.counts() == (counts[1], counts[1])


def test_stale_insert_of_a_part():
    """(a) Twins that branch off the same edge: the edge is cut twice, its blocks stay in use once, one branch leaks."""
    bench = Bench()
    bench.serve((1, 0, 64))
    twins = [bench.admit((1, 0, 32), (space, 0, 32)) for space in (2, 3)]
    for request in twins:
        bench.compute(request)
        bench.leave(request)
    assert bench.counts() == (4 + 2 + 2, 2)
    assert [bench.hit((1, 0, 32), (space, 0, 32)) for space in (2, 3)] == [32, 64]
    assert bench.hit((1, 0, 64)) == 64


@pytest.mark.parametrize("without", [(), (TreeDefect.INSERTS_STALE,)])
def test_edge_evicted_during_prefill(without: tuple[TreeDefect, ...]):
    """What a request matched a part of is evicted before it is through: nothing blank comes back into the tree."""
    bench = Bench(*without)
    bench.serve((1, 0, 64))
    request = bench.admit((1, 0, 32), (2, 0, 32))
    assert bench.reclaim() == [0, 1, 2, 3]
    assert bench.store.free_blocks == 60
    bench.compute(request)
    bench.leave(request)
    assert bench.counts() == (4, 0)
    assert bench.hit((1, 0, 64)) == 32
    assert bench.hit((1, 0, 32), (2, 0, 32)) == 64


@pytest.mark.parametrize(
    ("without", "older", "newer"),
    [((), 16, 50), ((TreeDefect.HIDES_OLDER,), 64, 50)],
)
def test_older_branch_hidden(without: tuple[TreeDefect, ...], older: int, newer: int):
    """(b) Branches part at token 20. At the boundary, 16, only the newer one is found; the older one's blocks are there
    for evictions alone. Without the defect a third branch, too, finds what it has in common with either."""
    bench = Bench(*without)
    bench.serve((1, 0, 64))
    bench.serve((1, 0, 20), (3, 0, 30))
    assert bench.hit((1, 0, 64)) == older
    assert bench.hit((1, 0, 20), (3, 0, 30)) == newer
    assert bench.hit((1, 0, 48), (4, 0, 30)) == (48 if without else 16)
    assert bench.counts() == (4 + 3, 0)


def test_split_at_a_boundary_hides_nothing():
    """(b) needs a split inside a block."""
    bench = Bench()
    bench.serve((1, 0, 64))
    bench.serve((1, 0, 32), (2, 0, 32))
    assert [bench.hit((1, 0, 64)), bench.hit((1, 0, 32), (2, 0, 32))] == [64, 64]


@pytest.mark.parametrize(
    ("without", "hits", "counts"),
    [
        ((), (0, 0), (3 + 4, 0)),
        ((TreeDefect.EMPTY_EDGES,), (0, 48), (4 + 3, 0)),
        ((TreeDefect.HIDES_OLDER,), (0, 0), (4 + 3, 0)),
        ((TreeDefect.EMPTY_EDGES, TreeDefect.HIDES_OLDER), (64, 48), (4 + 3, 0)),
    ],
)
def test_split_below_a_block(without: tuple[TreeDefect, ...], hits: tuple[int, int], counts: tuple[int, int]):
    """(c) Branches part at token 8: neither is found behind the edge without tokens. Without (c) the newer branch is,
    and the older one as well unless (b) hides it."""
    bench = Bench(*without)
    bench.serve((1, 0, 64))
    bench.serve((1, 0, 8), (2, 0, 40))
    assert (bench.hit((1, 0, 64)), bench.hit((1, 0, 8), (2, 0, 40))) == hits
    assert bench.counts() == counts


def test_empty_edge_is_replaced():
    """(c) The next prompt that begins so takes the empty edge's place, and both branches behind it leak."""
    leaks = {}
    for without in ((), (TreeDefect.EMPTY_EDGES,)):
        bench = Bench(*without)
        bench.serve((1, 0, 64))
        bench.serve((1, 0, 8), (2, 0, 40))
        bench.serve((1, 0, 64))
        leaks[without] = bench.counts()
    assert leaks == {(): (4 + 3 + 4, 4 + 3), (TreeDefect.EMPTY_EDGES,): (4 + 3 + 4, 0)}


@pytest.mark.parametrize(
    ("without", "tokens", "tables"),
    [((), 50, ([0, 1, 2, 3], [0, 1, 2, 3, 4])), ((TreeDefect.SHARES_PARTIAL,), 48, ([0, 1, 2, 3], [0, 1, 2, 4, 5]))],
)
def test_shared_partial_block(without: tuple[TreeDefect, ...], tokens: int, tables: tuple[list[int], list[int]]):
    """(d) 50 tokens end inside block 3, and who goes on from there shares it and writes into it; else it is copied."""
    bench = Bench(*without)
    first = bench.admit((1, 0, 50))
    bench.compute(first)
    assert bench.hit((1, 0, 50), (2, 0, 20)) == tokens
    second = bench.admit((1, 0, 50), (2, 0, 20))
    assert (bench.store.table(first), bench.store.table(second)) == tables


def test_eviction_of_used_leaves():
    """A leaf in use goes first if it is the oldest, and frees nothing; if it is spared, the next one goes."""
    for without, first, free in (((), [0, 1], 60), ((TreeDefect.EVICTS_USED,), [2, 3], 62)):
        bench = Bench(*without)
        used = bench.admit((1, 0, 32))
        bench.compute(used)
        bench.serve((2, 0, 32))
        assert bench.reclaim() == first
        assert bench.store.free_blocks == free
        if without:
            assert bench.reclaim() is None
        bench.leave(used)
        assert bench.reclaim() == ([0, 1] if without else [2, 3])
        assert bench.counts() == (0, 0)


def test_least_recently_used_leaf():
    """A match refreshes every edge on its path, also the one it ends in; a leaf goes before the edge above it."""
    bench = Bench()
    bench.store.evictions = []
    bench.serve((1, 0, 32))
    bench.serve((2, 0, 32))
    bench.serve((1, 0, 32), (3, 0, 16))
    bench.hit((2, 0, 20))
    reclaimed = [bench.reclaim() for _ in range(4)]
    assert reclaimed == [[4], [0, 1], [2, 3], None]
    assert bench.store.evictions == [4, 0, 1, 2, 3]
    assert bench.store.evicted_blocks == 5


# -- the rest of the protocol


def test_numbers_of_group_blocks():
    """Blocks taken for a group are nobody's until a request leaves with more than its table holds."""
    bench = Bench(total_blocks=8)
    first, second = bench.admit((1, 0, 16)), bench.admit((2, 0, 16))
    bench.store.take(3)
    bench.store.check_invariants(1 + 1 + 3)
    assert bench.store.free_blocks == 3
    bench.store.release(first, 2, 1, returns=False)
    bench.store.release(second, 3, 1, returns=False)
    assert bench.store.free_blocks == 8
    assert bench.counts() == (0, 0)


def test_cut_matches():
    """A hit is cut where the caller says, inside an edge or behind it; the rest of the prompt enters all the same."""
    bench = Bench(TreeDefect.INSERTS_STALE)
    bench.serve((1, 0, 64))
    request = bench.prompts.of((1, 0, 64), (2, 0, 16))
    hit = bench.store.match(request, most_blocks=2)
    assert (hit.blocks, hit.tokens) == (2, 32)
    bench.store.attach(request, hit)
    bench.store.grow(request, 3, 0)
    bench.compute(request)
    bench.leave(request)
    assert bench.hit((1, 0, 64), (2, 0, 16)) == 80
    assert bench.counts() == (5, 0)


def test_resize():
    """Blank blocks come and go; no number is given twice."""
    bench = Bench(total_blocks=4)
    request = bench.admit((1, 0, 48))
    bench.store.resize(3)
    assert bench.store.free_blocks == 0
    bench.store.resize(5)
    bench.store.make_blank(5)
    assert bench.store.free_blocks == 2
    other = bench.admit((2, 0, 32))
    assert len({*bench.store.table(request), *bench.store.table(other)}) == 5
    bench.store.check_invariants(5)


def test_seed_is_a_cache_without_references():
    """An initial state's whole blocks are in the tree, and what is there already is not taken twice."""
    bench = Bench()
    bench.store.seed(bench.prompts.of((1, 0, 64)), 3)
    assert bench.hit((1, 0, 64)) == 48
    bench.store.seed(bench.prompts.of((1, 0, 64)), 4)
    assert bench.hit((1, 0, 64)) == 64
    assert bench.counts() == (4, 0)


def test_nothing_is_learnt_and_a_missing_hit_is_none():
    """Outputs never enter the tree. A request may be attached to no hit; its prompt enters at the top."""
    bench = Bench()
    store: BlockStore = bench.store
    request = bench.prompts.of((1, 0, 20))
    store.attach(request, NO_HIT)
    store.grow(request, 2, 1)
    store.computed(request, 16)
    assert bench.hit((1, 0, 20)) == 0
    store.computed(request, 20)
    store.computed(request, 21)
    assert bench.hit((1, 0, 20)) == 20
    assert not store.learns_from(request)
    assert store.cached_blocks == 0


def test_hits_must_be_attached_before_they_are_reclaimed():
    """A hit kept over an eviction is a bug of the caller, and noticed."""
    bench = Bench()
    bench.serve((1, 0, 32))
    request = bench.prompts.of((1, 0, 64))
    hit = bench.store.match(request)
    bench.store.reclaim()
    with pytest.raises(AssertionError, match="before anything is reclaimed"):
        bench.store.attach(request, hit)
