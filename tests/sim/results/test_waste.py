"""The room in last blocks, in closed form, is what counting step by step gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.results.measure import Measured
from sim.results.metrics import compute
from sim.results.run import RunResult
from sim.results.tokens import Spans, expand
from sim.results.waste import LastBlocks, last_blocks


def by_hand(runs: list[list[int]]) -> Spans:
    """A table of requests with runs of so many events."""
    row = [at for at, each in enumerate(runs) for _ in each]
    events = [count for each in runs for count in each]
    zeros = np.zeros(len(row), np.int32)
    nothing = np.zeros(len(row), np.int64)
    return Spans(np.array(row, np.int32), zeros, zeros, np.array(events, np.int32), nothing, nothing)


@given(
    st.lists(st.tuples(st.integers(1, 70), st.lists(st.integers(1, 40), min_size=1, max_size=4)), max_size=6),
    st.integers(1, 20),
)
def test_it_is_the_sum_over_the_events_one_by_one(requests: list[tuple[int, list[int]]], size: int) -> None:
    empty = held = 0
    for prompt, runs in requests:
        for output in range(1, sum(runs) + 1):
            kv = prompt + output - 1
            blocks = -(-kv // size)
            empty, held = empty + blocks * size - kv, held + blocks * size
    prompts = np.array([prompt for prompt, _ in requests], np.int64)
    assert last_blocks(by_hand([runs for _, runs in requests]), prompts, [size]) == LastBlocks(empty, held)


def test_of_a_run_with_preemptions_in_it(busy: RunResult) -> None:
    """Outputs computed again are no output events, and count once."""
    empty = held = 0
    for row, prompt in enumerate(busy.trace.prompt_tokens.tolist()):
        kv = prompt + np.arange(len(expand(busy.logs[0], row)))
        room = -(-kv // 16) * 16
        empty, held = empty + int((room - kv).sum()), held + int(room.sum())
    assert Measured(busy).last_blocks == LastBlocks(empty, held)
    assert compute(busy).value("last_block_waste_ratio") == empty / held
