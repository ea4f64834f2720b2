"""Case B8: a cancel in every state returns every block, ends once, and lets no token out any more."""

from __future__ import annotations

from typing import Any

import pytest

from sim.core.engine import EngineCore
from sim.core.lifecycle import State
from sim.core.observer import Observer
from sim.core.request import Request
from sim.core.spec import Quirk
from sim.engines import ENGINES, UNKNOWN_HARDWARE, Reference
from sim.testing.worlds import Row, World
from tests.laws.costs import COSTS, STEP_NS
from tests.laws.worlds import run


class Tokens(Observer):
    """Who got a token, and who ended."""

    def __init__(self) -> None:
        self.given: list[str] = []
        self.over: list[str] = []

    def prefilled(self, request: Request) -> None:
        self.given.append(request.id)

    def decoded(self, request: Request, start: int, stop: int) -> None:
        self.given += [request.id] * (stop - start)

    def ended(self, request: Request, reason: str, detail: str) -> None:
        self.over.append(request.id)


def test_exactly_on_the_reference_engine() -> None:
    """W waits, Pf has 8 of 20 prompt tokens, D 9 KV entries, F 6 and one output left; blocks of 4, a budget of 8."""
    seen = Tokens()
    core = EngineCore(Reference(block_size=4, num_blocks=20, token_budget=8, slots=3).spec(UNKNOWN_HARDWARE), seen)
    prefilling = Request("Pf", prompt_tokens=20, max_tokens=10)
    decoding = Request("D", prompt_tokens=5, max_tokens=10)
    finishing = Request("F", prompt_tokens=3, max_tokens=5)
    waiting = Request("W", prompt_tokens=6, max_tokens=4)
    core.place(decoding, computed_tokens=9, output_tokens=5, stop_after=10)
    core.place(finishing, computed_tokens=6, output_tokens=4, stop_after=5)
    core.place(prefilling, computed_tokens=8, output_tokens=0, stop_after=10)
    core.submit(waiting, stop_after=4)
    assert core.used_blocks == 7
    plan = core.plan_step()
    assert plan is not None
    assert [(item.request.id, item.tokens) for item in plan.items] == [("Pf", 6)]
    assert (plan.decode_requests, core.used_blocks) == (2, 9)
    for request in (waiting, prefilling, decoding, finishing):
        core.cancel(request)
    assert core.commit_step(plan, 1) == []
    assert core.used_blocks == 0
    assert (seen.given, seen.over) == ([], ["W", "Pf", "D", "F"])
    assert all(one.state is State.CANCELLED for one in (waiting, prefilling, decoding, finishing))
    assert [one.output_tokens for one in (waiting, prefilling, decoding, finishing)] == [0, 0, 5, 4]
    assert core.plan_step() is None
    core.check_invariants()


FEW_SLOTS: dict[str, dict[str, Any]] = {
    "mini-runtime": {"max_batch_size": 4, "num_blocks": 64, "max_tokens_per_prefill_chunk": 16},
    "reference": {"slots": 4, "token_budget": 16},
    "sglang": {"max_running_requests": 4, "chunked_prefill_size": 16},
    "static-batch": {"slots": 4},
    "textbook": {"slots": 4, "max_work": 16.0},
    "trtllm-guaranteed-no-evict": {"max_batch_size": 4},
    "trtllm-max-utilization": {"max_batch_size": 4},
    "trtllm-static-batch": {"max_batch_size": 4},
    "vllm-v0": {"max_num_seqs": 4, "enable_chunked_prefill": True, "max_num_batched_tokens": 16},
    "vllm-v1": {"max_num_seqs": 4, "max_num_batched_tokens": 16},
}
"""So that some wait and some are half-way through their prompt."""


@pytest.mark.parametrize("preset", ENGINES.names())
def test_on_every_preset(preset: str) -> None:
    """Cancels at every half step of the first twelve, of requests in all states, some just as their last token is due.

    mini-runtime only notes a cancel and computes on (its quirk): there the tokens go on, but to nobody.
    """
    spec = ENGINES.maker(preset)(**FEW_SLOTS[preset]).spec(UNKNOWN_HARDWARE)
    rows = tuple(
        Row(
            arrival_ns=number // 3 * STEP_NS,
            prompt=(5, 40, 9)[number % 3],
            max_tokens=1 + number % 5,
            stop_after=1 + number % 5,
            priority=0,
            ids=(),
            cancel_after_ns=number * STEP_NS // 2,
        )
        for number in range(24)
    )
    one = run(World(spec, rows, COSTS["even"]))
    core, columns = one.core, one.columns
    assert core.idle
    kept = core.store.retained_blocks if Quirk.CACHE_LEAKS in spec.quirks else 0
    assert core.store.free_blocks + kept == core.store.total_blocks
    assert set(one.log.terminal_events.values()) == {1}
    assert len(one.log.terminal_events) == len(rows)
    cancelled = [request for request in one.requests if request.state is State.CANCELLED]
    assert len(cancelled) >= 8
    if Quirk.LEAVERS_RUN_ON not in spec.quirks:
        for request in cancelled:
            gone_ns = rows[request.row].arrival_ns + rows[request.row].cancel_after_ns
            assert all(token_ns < gone_ns for token_ns in one.token_times_ns(request.row))
            assert columns.end_ns[request.row] - gone_ns < 2 * STEP_NS
