"""Orders that sort before each scan: lpm with its rule for shared beginnings, dfs-weight, lof."""

from __future__ import annotations

from typing import Any

import pytest

from sim.core.engine import EngineCore
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE
from sim.engines.sglang import Sglang
from sim.kv.content import Content
from sim.policies.registry import ORDER


def tokens(first: int, count: int) -> tuple[int, ...]:
    """Names of `count` tokens; chained, so they stand for all before them too."""
    return tuple(range(first, first + count))


def waiting(
    policy: Any, *prompts: tuple[int, ...], cached: tuple[tuple[int, ...], ...] = (), **flags: Any
) -> EngineCore:
    """An engine in whose queue requests with these prompts stand, with these contents in its cache."""
    core = EngineCore(Sglang(schedule_policy=policy, **flags).spec(UNKNOWN_HARDWARE))
    for ids in cached:
        content = Content(ids, shared_blocks=len(ids), owner=0)
        core.store.seed(Request("", prompt_tokens=len(ids), max_tokens=1, content=content), len(ids))
    for number, ids in enumerate(prompts):
        content = Content(ids, shared_blocks=len(ids), owner=0)
        request = Request(str(number), prompt_tokens=len(ids), max_tokens=10 + number // 2, content=content)
        core.submit(request, stop_after=5)
    return core


def order(core: EngineCore) -> str:
    return "".join(request.id for request in core.order.arranged(core))


def test_lpm_puts_the_longest_cached_prefix_first() -> None:
    """Hits of 0, 40, 0 and 60 tokens; those without one stand as they came."""
    a, b = tokens(1000, 100), tokens(2000, 100)
    core = waiting("lpm", tokens(3000, 50), a[:40] + tokens(4000, 9), tokens(5000, 9), b[:60], cached=(a, b))
    assert order(core) == "3102"


def waiting_first(core: EngineCore) -> str:
    return core.order.arranged(core)[0].id


@pytest.mark.parametrize(("shared", "expected"), [(31, "0123"), (32, "0231")])
def test_lpm_lets_one_of_those_that_share_a_beginning_go_first(shared: int, expected: str) -> None:
    """1 shares its beginning with 0, who stands before it; 2 and 3 share nothing."""
    a = tokens(1000, 100)
    core = waiting("lpm", a, a[:shared] + tokens(2000, 60), tokens(3000, 60), tokens(4000, 60))
    assert order(core) == expected


def test_lpm_does_not_hold_back_who_has_more_of_it_cached() -> None:
    """Both share 40 tokens; 32 or 33 of them are cached. With 33 there is nothing to wait for."""
    a = tokens(1000, 40)
    for cached, expected in ((32, "021"), (33, "012")):
        core = waiting("lpm", a + tokens(2000, 9), a + tokens(3000, 9), tokens(4000, 9), cached=(a[:cached],))
        assert order(core) == expected


def test_lpm_leaves_a_long_queue_as_it_is() -> None:
    a = tokens(1000, 100)
    others = [tokens(3000 + 10 * number, 2) for number in range(128)]
    assert waiting_first(waiting("lpm", *others[:127], a[:50], cached=(a,))) == "127"
    assert waiting_first(waiting("lpm", *others, a[:50], cached=(a,))) == "0"


def test_dfs_weight_follows_the_branch_with_most_requests() -> None:
    """Cached are A+B, A+C and D. Three hit A+C, one A+B, one only A, one D, one nothing.

    From the root: A (5) before D (1), then who hits nothing. In A: C (3) before B (1), then who hits only A.
    """
    a, b, c, d = tokens(1000, 10), tokens(2000, 10), tokens(3000, 10), tokens(4000, 10)
    rest = [tokens(9000 + 10 * number, 3) for number in range(7)]
    hits = (d, (), a, a + b, a + c, a + c, a + c[:5])
    prompts = [hit + own for hit, own in zip(hits, rest, strict=True)]
    core = waiting("dfs-weight", *prompts, cached=(a + b, a + c, d))
    assert order(core) == "4563201"


def test_lof_puts_the_largest_max_tokens_first() -> None:
    """10, 10, 11, 11 and 12; equals as they stand."""
    assert order(waiting("lof", *[tokens(100 * number, 3) for number in range(5)])) == "42301"


def test_senseless_parameters() -> None:
    for wrong in ({"shared_tokens": 0}, {"longest_queue": -1}):
        with pytest.raises(ValueError, match="must be >="):
            ORDER.make("lpm", **wrong)
