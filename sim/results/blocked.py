"""What waiting requests waited for: the engine's blockers, a step function of time, laid over each request's wait."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.core.plan import Blocker
from sim.results.arrays import BoolArray, IntArray, view
from sim.results.columns import EngineLog
from sim.results.journal import BLOCKERS

WAITED_FOR = (Blocker.BLOCKS, Blocker.WORK, Blocker.SLOTS, Blocker.POLICY, Blocker.STEP)
"""In the order of reports. While no blocker is on record, who waits does so for the step in progress."""

PLACE = np.array([WAITED_FOR.index(Blocker.STEP if b is Blocker.NOTHING else b) for b in BLOCKERS])
"""Of a blocker's code in `WAITED_FOR`."""


def blocker_steps(log: EngineLog) -> tuple[IntArray, IntArray]:
    """The step function of one engine: (since_ns ascending, place in WAITED_FOR)."""
    return np.maximum.accumulate(view(log.blocked_since_ns)), PLACE[view(log.blocked_by)]


def blocked_ns(log: EngineLog, from_ns: IntArray, until_ns: IntArray) -> IntArray:
    """How long each wait was blocked by what. Shape: (len(WAITED_FOR), num_waits); columns add up to the wait."""
    since, place = blocker_steps(log)
    lasting = np.diff(since, append=since[-1])
    return np.stack(
        [
            _until(since, place == each, lasting, until_ns) - _until(since, place == each, lasting, from_ns)
            for each in range(len(WAITED_FOR))
        ]
    )


def _until(since: IntArray, mine: BoolArray, lasting: IntArray, time_ns: IntArray) -> IntArray:
    """Total time up to `time_ns` with this blocker; exact, in integers."""
    before = np.cumsum(lasting * mine) - lasting * mine
    at = np.searchsorted(since, time_ns, side="right") - 1
    return before[at] + (time_ns - since[at]) * mine[at]


def blocked_by_engine(logs: Sequence[EngineLog], engine: IntArray, from_ns: IntArray, until_ns: IntArray) -> IntArray:
    """`blocked_ns` of requests on several engines. Shape: (len(WAITED_FOR), num_requests)"""
    out = np.zeros((len(WAITED_FOR), len(engine)), np.int64)
    for index, log in enumerate(logs):
        mine = engine == index
        out[:, mine] = blocked_ns(log, from_ns[mine], until_ns[mine])
    return out
