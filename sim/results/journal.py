"""What happened to whom, in the order in which it happened: the material of `tokenwork explain`.

Rows of small integers in one array per kind of event, so that keeping them costs a request some dozens of bytes.
"""

from __future__ import annotations

from array import array

import numpy as np

from sim.core.plan import Blocker, Decision, PreemptionMode
from sim.core.request import Request
from sim.results.arrays import IntArray, view

MODES = tuple(PreemptionMode)
MODE_CODES = {mode: code for code, mode in enumerate(MODES)}
BLOCKERS = tuple(Blocker)
BLOCKER_CODES = {blocker: code for code, blocker in enumerate(BLOCKERS)}
NOBODY = BLOCKER_CODES[Blocker.NOTHING]
NO_ROW = -1
"""In a column of rows: nobody in particular."""


class Journal:
    """Events of one engine. Shape of an event's rows: (num_events, number of its columns).

    First admissions and endings stand in the columns of requests.
    """

    READMISSIONS = ("time_ns", "row", "hit_tokens")
    PREEMPTIONS = ("time_ns", "row", "mode", "asker_row", "lost_tokens")
    SWAP_INS = ("time_ns", "row", "blocks")
    HEADS = ("time_ns", "row", "blocker", "reason")
    """From then on the scan of the queue ends for this reason; `row`: at this request, or at anybody (-1)."""

    def __init__(self) -> None:
        self._readmissions = array("q")
        self._preemptions = array("q")
        self._swap_ins = array("q")
        self._heads = array("q", [0, NO_ROW, NOBODY, 0])
        self._reasons: dict[str, int] = {"": 0}

    def readmitted(self, time_ns: int, row: int, hit_tokens: int) -> None:
        self._readmissions.fromlist([time_ns, row, hit_tokens])

    def preempted(self, time_ns: int, row: int, mode: PreemptionMode, asker: Request | None, lost_tokens: int) -> None:
        asker_row = NO_ROW if asker is None else asker.row
        self._preemptions.fromlist([time_ns, row, MODE_CODES[mode], asker_row, lost_tokens])

    def swapped_in(self, time_ns: int, row: int, blocks: int) -> None:
        self._swap_ins.fromlist([time_ns, row, blocks])

    def blocked(self, since_ns: int, by: Decision | None, head: Request | None) -> None:
        """Told only of changes."""
        row = NO_ROW if head is None else head.row
        code, reason = (NOBODY, "") if by is None else (BLOCKER_CODES[by.blocker], by.reason)
        self._heads.fromlist([since_ns, row, code, self._reasons.setdefault(reason, len(self._reasons))])

    # -- read

    def num_swap_outs(self) -> int:
        return int((self.preemptions()[:, 2] == MODE_CODES[PreemptionMode.SWAP]).sum())

    def readmissions(self) -> IntArray:
        return _rows(self._readmissions, self.READMISSIONS)

    def preemptions(self) -> IntArray:
        return _rows(self._preemptions, self.PREEMPTIONS)

    def swap_ins(self) -> IntArray:
        return _rows(self._swap_ins, self.SWAP_INS)

    def heads(self) -> IntArray:
        """A step function of time. Of entries at one instant only the last holds; an entry like the one before is none.

        (A plan may find at an instant what another, at the same instant, has found already.)
        """
        rows = _rows(self._heads, self.HEADS)
        rows = rows[np.append(rows[1:, 0] > rows[:-1, 0], True)]
        changed = np.append(True, (rows[1:, 1:] != rows[:-1, 1:]).any(axis=1))
        kept: IntArray = rows[changed]
        return kept

    @property
    def reasons(self) -> list[str]:
        """By code."""
        return list(self._reasons)


def _rows(values: array[int], columns: tuple[str, ...]) -> IntArray:
    return view(values).reshape(-1, len(columns)).copy()
