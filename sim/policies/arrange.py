"""Orders that sort the queue before each scan: by what is cached for a request, or by what it may write (SGLang)."""

from __future__ import annotations

from sim.core.cohort import FOREVER
from sim.core.plan import BatchPlan
from sim.core.queue import FifoQueue, WaitingQueue
from sim.core.request import Request
from sim.kv.store import Hit
from sim.policies.protocols import EngineView, OrderPolicy
from sim.policies.registry import ORDER


class SortedByScan(OrderPolicy):
    """The queue keeps the order of the last scan; who comes, or comes back, stands behind."""

    sorts = True

    def queue(self) -> WaitingQueue:
        return FifoQueue()


@ORDER.register("lof")
class LongestOutputFirst(SortedByScan):
    """The largest max_tokens first; equals as they stand (SGLang 0.5.23 `_sort_by_longest_output`)."""

    def arranged(self, engine: EngineView) -> list[Request]:
        return sorted(engine.waiting, key=lambda request: -request.max_tokens)

    def steady_steps(self, engine: EngineView, plan: BatchPlan) -> int:
        """What is sorted stays so."""
        return FOREVER


@ORDER.register("lpm")
class LongestPrefixFirst(SortedByScan):
    """The longest cached prefix first; equals as they stand (SGLang 0.5.23 `_sort_by_longest_prefix`).

    Of several that share a beginning which is not cached yet, one goes first and the others last, to find it cached
    when they are let in: whoever has at most `shared_tokens` cached and as many in common with one before him in the
    queue. (SGLang compares such beginnings token by token, we in whole pages.) A queue of more than `longest_queue` is
    left as it is.
    """

    def __init__(self, shared_tokens: int = 32, longest_queue: int = 128) -> None:
        if shared_tokens < 1:
            raise ValueError(f"shared_tokens must be >= 1, got {shared_tokens}")
        if longest_queue < 0:
            raise ValueError(f"longest_queue must be >= 0, got {longest_queue}")
        self.shared_tokens = shared_tokens
        self.longest_queue = longest_queue

    def arranged(self, engine: EngineView) -> list[Request]:
        waiting = list(engine.waiting)
        if len(waiting) > self.longest_queue:
            return waiting
        beginnings: set[int] = set()
        ranks: dict[Request, int] = {}
        for request in waiting:
            hit = _look_up(engine, request)
            ranks[request] = -hit.tokens
            if hit.tokens <= self.shared_tokens and self._shares(engine, request, beginnings):
                ranks[request] = 1
        return sorted(waiting, key=ranks.__getitem__)

    def _shares(self, engine: EngineView, request: Request, beginnings: set[int]) -> bool:
        """Whether one before it has the same first tokens; if not, it is the one for those who come.

        Names of pages are chained, so the page in which these tokens end says it all.
        """
        last = engine.blocks(self.shared_tokens) - 1
        if request.content is None or request.known_tokens < (last + 1) * engine.block_tokens:
            return False
        key = request.content.key(last)
        shares = key in beginnings
        beginnings.add(key)
        return shares


@ORDER.register("dfs-weight")
class DepthFirst(SortedByScan):
    """Requests that hit the same branch of the cache go one after another, the branch with most of them first.

    Depth first from the root; those that hit no more than a node come behind all that go on below it. Branches with
    equally many stand as they do in the queue (SGLang 0.5.23 `_dfs_weight_order`: as they grew in its tree).
    """

    def arranged(self, engine: EngineView) -> list[Request]:
        hits = {request: _look_up(engine, request).blocks for request in engine.waiting}
        order: list[Request] = []
        stack: list[tuple[list[Request], int]] = [(list(hits), 0)]
        while stack:
            group, depth = stack.pop()
            branches: dict[int, list[Request]] = {}
            for request in group:
                if hits[request] > depth:
                    branches.setdefault(_page(request, depth), []).append(request)
            if not branches:
                order += group
                continue
            stack.append(([request for request in group if hits[request] == depth], depth))
            largest_first = sorted(branches.values(), key=len, reverse=True)
            stack += [(branch, _end(branch, depth, hits)) for branch in reversed(largest_first)]
        return order


def _look_up(engine: EngineView, request: Request) -> Hit:
    """What is cached of all that it knows; an access, as in SGLang."""
    return engine.store.match(request, most_blocks=request.known_tokens // engine.block_tokens)


def _page(request: Request, number: int) -> int:
    assert request.content is not None
    return request.content.key(number)


def _end(branch: list[Request], depth: int, hits: dict[Request, int]) -> int:
    """How far requests that have page `depth` in common hit the same."""
    end = min(hits[request] for request in branch)
    first = branch[0].content
    for request in branch[1:]:
        assert first is not None
        assert request.content is not None
        end = depth + first.in_common(request.content, depth, end - depth)
    return end
