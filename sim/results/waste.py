"""Fragmentation of the pool: the room in the last block of each request, in closed form over ranges of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.results.arrays import CHUNK, IntArray
from sim.results.tokens import Spans


@dataclass(frozen=True, slots=True)
class LastBlocks:
    """Summed over the steps in which requests got output. Unit: tokens x steps."""

    empty: int
    """Room that nothing is written to, in the last block of each."""
    held: int
    """Room in all blocks that its KV takes, filled or not; a shared block counts for everybody who uses it."""


def last_blocks(table: Spans, prompt_tokens: IntArray, block_tokens: Sequence[int]) -> LastBlocks:
    """A request with a prompt of P has P + o - 1 entries of KV in the step of its o-th output event.

    `prompt_tokens`: of each request. `block_tokens`: of each engine.
    """
    before = _events_before(table)
    sizes = np.asarray(block_tokens, np.int64)
    empty = filled = 0
    for at in range(0, len(before), CHUNK):
        part = slice(at, at + CHUNK)
        events, size = table.events[part].astype(np.int64), sizes[table.engine[part]]
        first: IntArray = prompt_tokens[table.row[part]] + before[part]
        empty += int((_empty_upto(first + events - 1, size) - _empty_upto(first - 1, size)).sum())
        filled += int((events * (2 * first + events - 1) // 2).sum())
    return LastBlocks(empty, empty + filled)


def _events_before(table: Spans) -> IntArray:
    """Output events of its request before each span. Shape: (num_spans,)"""
    if not len(table.row):
        return np.zeros(0, np.int64)
    before = np.cumsum(table.events, dtype=np.int64)
    before -= table.events
    opens = np.flatnonzero(table.opens)
    before -= np.repeat(before[opens], np.diff(np.append(opens, len(before))))
    return before


def _empty_upto(tokens: IntArray, size: IntArray) -> IntArray:
    """Sum of (-n mod size) over n = 1 .. tokens: whole blocks, and the one that has been begun."""
    whole, rest = np.divmod(tokens, size)
    empty: IntArray = whole * (size * (size - 1) // 2) + rest * size - rest * (rest + 1) // 2
    return empty
