"""Radix cache: made cases small enough to follow, and the pools that SGLang printed. (Oracle: test_radix_lives.py.)"""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sim.core.request import Request
from sim.kv.content import Content
from sim.kv.radix import RadixStore
from sim.kv.store import NO_HIT
from sim.policies.eviction import EvictionPolicy, LeastUrgentLeaf

PAGE = 4


def guest(owner: int, *ids: int, priority: int = 0) -> Request:
    """A request whose prompt is exactly its named pages and one token more."""
    content = Content(ids, shared_blocks=len(ids), owner=owner)
    return Request(f"r{owner}", prompt_tokens=len(ids) * PAGE + 1, max_tokens=99, content=content, priority=priority)


def schedule(store: RadixStore, request: Request) -> int:
    """Admit it with its whole prompt; returns the pages hit."""
    hit = store.match(request)
    store.attach(request, hit)
    store.grow(request, request.content.shared_blocks + 1 - hit.blocks, request.content.shared_blocks)
    return hit.blocks


def prefill(store: RadixStore, request: Request) -> int:
    hit = schedule(store, request)
    store.computed(request, request.prompt_tokens)
    return hit


def leave(store: RadixStore, request: Request, answer_pages: int = 0, *, returns: bool = False) -> None:
    """After so many pages of answer; the last page is full only in part."""
    full = request.content.shared_blocks + answer_pages
    store.take(answer_pages)
    store.release(request, full + 1, full, returns=returns)


def pools(store: RadixStore) -> tuple[int, int, int]:
    return store.blank_blocks, store.cached_blocks, store.protected_blocks


def store_of(blocks: int, eviction: EvictionPolicy | None = None) -> RadixStore:
    store = RadixStore(blocks, PAGE, eviction)
    store.evictions = []
    return store


def test_nothing_is_found_before_it_has_been_computed():
    """Two requests scheduled together compute the same prompt twice; the later one then gives its copy back."""
    store = store_of(10)
    first, second = guest(1, 10, 11, 12), guest(2, 10, 11, 12)
    assert (schedule(store, first), schedule(store, second)) == (0, 0)
    assert pools(store) == (2, 0, 0)
    store.computed(first, first.prompt_tokens)
    assert pools(store) == (2, 0, 3)
    store.computed(second, second.prompt_tokens)
    assert pools(store) == (5, 0, 3)
    store.check_invariants(4 + 4)


def test_answers_enter_the_tree_at_the_end_and_go_before_their_prompts():
    """Evicted as a leaf of their own: whole, even if less was asked for."""
    store = store_of(10)
    first = guest(1, 10, 11)
    prefill(store, first)
    leave(store, first, answer_pages=3)
    assert pools(store) == (5, 5, 0)
    store.take(6)
    assert store.evictions == [first.content.key(page) for page in (4, 3, 2)]
    assert pools(store) == (2, 2, 0)


def test_retraction_leaves_the_prompt():
    """What it had generated is lost; its prompt stays cached, and can be evicted."""
    store = store_of(10)
    first = guest(1, 10, 11)
    prefill(store, first)
    leave(store, first, answer_pages=3, returns=True)
    assert pools(store) == (8, 2, 0)
    assert store.match(first).blocks == 2
    store.make_blank(9)
    assert pools(store) == (10, 0, 0)


def test_locked_pages_stay():
    """Room is made only out of what nobody uses, as far as there is any; asking for more is no error."""
    store = store_of(10)
    first, second = guest(1, 10, 11, 12), guest(2, 10, 11, 20)
    prefill(store, first)
    prefill(store, second)
    leave(store, first)
    assert pools(store) == (5, 1, 3)
    store.make_blank(10)
    assert store.evictions == [12]
    assert pools(store) == (6, 0, 3)
    assert store.match(guest(3, 10, 11, 20, 21)).blocks == 3


def test_matching_refreshes():
    """A waiting request that is matched and refused keeps its prefix from being the next to go."""
    store = store_of(10)
    for request in (guest(1, 10), guest(2, 20), guest(3, 30)):
        prefill(store, request)
        leave(store, request)
    assert store.match(guest(4, 10)).blocks == 1
    store.make_blank(9)
    assert store.evictions == [20, 30]


def test_partial_match_splits_and_the_rest_is_older():
    """The rest of a split node is as old as the match; a leaf that is made beside it is younger, and goes later."""
    store = store_of(12)
    trunk = guest(1, 10, 11, 12)
    prefill(store, trunk)
    leave(store, trunk)
    branch = guest(2, 10, 20)
    assert store.match(branch).free_blocks == 1
    assert prefill(store, branch) == 1
    leave(store, branch)
    store.make_blank(11)
    assert store.evictions == [12, 11, 20]


def test_a_hit_survives_other_matches():
    """Between a match and its lock others may split the same node."""
    store = store_of(12)
    trunk = guest(1, 10, 11, 12, 13)
    prefill(store, trunk)
    leave(store, trunk)
    first, second = guest(2, 10, 11, 12, 30), guest(3, 10, 20)
    hit = store.match(first)
    assert store.match(second).blocks == 1
    store.attach(first, hit)
    assert pools(store) == (8, 1, 3)
    store.check_invariants(3)


def test_a_leaf_locked_after_it_was_ranked_stays():
    """Others may be evicted between a match and its lock, and the leaf has been queued for eviction by then."""
    store = store_of(6)
    store.seed(guest(1, 10), 1)
    store.seed(guest(2, 20), 1)
    again = guest(3, 20, 21)
    hit = store.match(again)
    store.seed(guest(4, 30), 1)
    store.make_blank(4)
    store.attach(again, hit)
    store.make_blank(6)
    assert store.evictions == [10, 30]
    assert pools(store) == (5, 0, 1)


def test_least_urgent_contents_go_first():
    """A page counts as urgent as the most urgent request that has computed it, a prompt more than its answer."""
    store = store_of(20, LeastUrgentLeaf())
    urgent, other = guest(1, 10, priority=0), guest(2, 20, priority=5)
    shared, last = guest(3, 30, priority=9), guest(4, 30, priority=-1)
    for request in (shared, urgent, other, last):
        prefill(store, request)
        leave(store, request, answer_pages=1)
    store.make_blank(20)
    answers = {request.id: request.content.key(1) for request in (shared, urgent, other, last)}
    assert store.evictions == [answers["r3"], answers["r2"], 20, answers["r1"], 10, answers["r4"], 30]


def test_seed_is_a_cache_without_locks():
    """An initial state's pages are cached and evictable; what is there already is not stored twice."""
    store = store_of(8)
    for blocks in (2, 3):
        store.seed(guest(1, 10, 11, 12), blocks)
    assert pools(store) == (5, 3, 0)
    assert store.match(guest(2, 10, 11, 12)).free_blocks == 3
    assert store.match(guest(3, 99)) is NO_HIT


def test_outdated_entries_do_not_pile_up():
    """Leaves that are refreshed before every eviction leave no long trail in the queue, and still go in order."""
    store = store_of(221)
    keepers = [guest(owner, owner) for owner in range(20)]
    for request in [*keepers, *(guest(owner, owner) for owner in range(20, 220))]:
        store.seed(request, 1)
    longest = 0
    for blank in range(2, 202):
        for request in keepers:
            store.match(request)
        store.make_blank(blank)
        longest = max(longest, len(store._leaves._heap))
    store.make_blank(221)
    assert store.evictions == [*range(20, 220), *range(20)]
    assert 220 < longest < 1000


# -- the pools that SGLang printed

RECORDED = json.loads((Path(__file__).parents[2] / "golden/sglang.json").read_text())["scenarios"]
RETRACT_STEPS = 20


class Recording:
    """Does to a store what a recorded scheduler did: its decisions are given, the pools are compared."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        self.input, self.steps = scenario["input"], scenario["output"]["steps"]
        self.page = self.input.get("page_size", 1)
        self.store = RadixStore(self.input["num_kv_tokens"] // self.page, self.page)
        self.names: dict[tuple[int, tuple[object, ...]], int] = defaultdict(count().__next__)
        """(Name of the page before, tokens) -> the chained name of a page."""
        self.requests = [self.request(row["id"], row["prompt"]) for row in self.input["requests"]]
        self.computed: dict[int, int] = {}
        """Tokens with KV of those that run."""

    def request(self, number: int, prompt: list[list[int]]) -> Request:
        tokens = [(stream, start + i) for stream, start, length in prompt for i in range(length)]
        ids, name = [], -1
        for at in range(0, len(tokens) - self.page + 1, self.page):
            name = self.names[name, tuple(tokens[at : at + self.page])]
            ids.append(name)
        content = Content(tuple(ids), shared_blocks=len(ids), owner=number)
        return Request(str(number), prompt_tokens=len(tokens), max_tokens=1000, content=content)

    def pages(self, number: int) -> int:
        return -(-self.computed.get(number, 0) // self.page)

    def play(self) -> None:
        for step in self.steps:
            pools_tokens = [blocks * self.page for blocks in pools(self.store)]
            assert pools_tokens == [step["avail"], step["evictable"], step["protected"]], step["step"]
            self.store.check_invariants(sum(self.pages(number) for number in self.computed))
            if step.get("decisions"):
                self.prefill(step)
            if step["action"] == "decode":
                self.decode(step)
            for number in step.get("finished") or ():
                self.leave(number, returns=False)

    def prefill(self, step: dict[str, Any]) -> None:
        if self.input["policy"] == "lpm":
            for number in step["waiting"]:
                self.store.match(self.requests[number])
        batch = {}
        for row in step["decisions"]:
            request = self.requests[row["id"]]
            if row["kind"] == "add":
                hit = self.store.match(request)
                assert hit.tokens == row["prefix"]
                if not row["added"]:
                    continue
                self.store.attach(request, hit)
                self.computed[row["id"]] = hit.tokens
            batch[row["id"]] = row["prefix"] + row["extend"]
        for number, tokens in batch.items():
            held = self.pages(number)
            self.computed[number] = tokens
            self.store.grow(self.requests[number], self.pages(number) - held, tokens // self.page)
        for number, tokens in batch.items():
            request = self.requests[number]
            self.store.computed(request, tokens)
            request.outputs += tokens == request.known_tokens

    def decode(self, step: dict[str, Any]) -> None:
        survivors = len(step["running"])
        for number in step.get("retracted") or ():
            self.leave(number, returns=True)
            survivors -= 1
            self.store.make_blank(-(-RETRACT_STEPS * survivors // self.page))
        self.store.take(sum(self.computed[number] % self.page == 0 for number in step["decoded"]))
        for number in step["decoded"]:
            self.computed[number] += 1
            self.requests[number].outputs += 1

    def leave(self, number: int, *, returns: bool) -> None:
        held = self.pages(number)
        full = self.computed.pop(number) // self.page
        self.store.release(self.requests[number], held, full, returns=returns)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_pools(name: str):
    """Given SGLang's decisions, every prefix and the available, evictable and protected tokens are SGLang's, always."""
    Recording(RECORDED[name]).play()
