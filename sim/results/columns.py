"""The books of a run, in columns: a row per request, a row per plan, and when tokens came out. No objects, no metrics.

Token times are not stored per token. A decoding request gets one token per step of its engine's cohort, so the ends
of cohort steps are kept once and a request's tokens are *segments*: single tokens (a prefill's) and ranges of cohort
steps.
"""

from __future__ import annotations

import struct
from array import array
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sim.core.engine import EngineCore
from sim.core.lifecycle import State
from sim.core.observer import Observer
from sim.core.plan import BatchPlan, Blocker, Decision, PreemptionMode
from sim.core.request import Request
from sim.results.journal import BLOCKER_CODES, NOBODY, Journal

IntArray = NDArray[np.int64]

STATES = tuple(State)
STATE_CODES = {state: code for code, state in enumerate(STATES)}
NEVER = -1
"""In a time column: it has not happened."""
NOT_YET = (1 << 63) - 1
"""In `came_in_ns`: it waits outside, or did when it ended."""


def _column(rows: int, value: int = NEVER) -> array[int]:
    return array("q", [value]) * rows


class RequestColumns:
    """One row per request of the workload, in order of arrival; times in ns, `NEVER` where it did not happen."""

    def __init__(self, rows: int) -> None:
        self.engine = _column(rows)
        """Index of the engine it went to."""
        self.state = _column(rows, STATE_CODES[State.QUEUED])
        self.came_in_ns = _column(rows)
        """When it came into its engine's queue from outside; NEVER if it was in it from arrival on."""
        self.admitted_ns = _column(rows)
        """First admission."""
        self.end_ns = _column(rows)
        self.output_tokens = _column(rows, 0)
        """Delivered."""
        self.max_tokens = _column(rows, 0)
        """As the engine clipped it."""
        self.preemptions = _column(rows, 0)
        self.lost_tokens = _column(rows, 0)
        """KV entries dropped by preemptions: to be computed again, or hit again."""
        self.hit_tokens = _column(rows, 0)
        """Found cached, summed over admissions."""
        self.rehit_tokens = _column(rows, 0)
        """Of these, found by admissions after a preemption."""
        self.requeue_ns = _column(rows, 0)
        """Waited after preemptions, apart from the queue time before the first admission."""
        self.waiting_seen = _column(rows, 0)
        """Waiting requests in the engine when it arrived."""
        self.reason: dict[int, str] = {}
        """Why it ended, where that is not the usual thing."""
        self.detail: dict[int, str] = {}


class StepColumns:
    """One row per plan: its first step's shape, and how many steps it came to. Shape of a column: (num_plans,).

    Rows are kept in one array, for one append per plan; a column is a view of it, and as long as it lives no row may
    be added.
    """

    scheduled_ns: IntArray
    """When it was planned; it starts when the one before ends."""
    start_ns: IntArray
    decode_requests: IntArray
    decode_context_tokens: IntArray
    prefill_requests: IntArray
    prefill_tokens: IntArray
    prefill_pairs2: IntArray
    """Twice the attention pairs of the prefill chunks (an integer): Σ tokens (2 context + tokens + 1)."""
    running: IntArray
    waiting: IntArray
    used_blocks: IntArray
    """Not free after scheduling the first step: referenced by live requests."""
    cached_blocks: IntArray
    reserved_blocks: IntArray
    preempted: IntArray
    total_blocks: IntArray
    """Usable ones: fewer than usual while memory is short."""
    swapped_blocks: IntArray
    """Moved over the host link before the first step."""
    evicted_blocks: IntArray
    """Cached blocks that have lost their contents so far."""

    NAMES = tuple(name for name in __annotations__)
    _PACKED = struct.Struct(f"={len(NAMES)}q")

    def __init__(self) -> None:
        self._rows = array("q")
        self.steps = array("q")
        """How many steps the plan came to."""
        self.ends_ns = array("q")
        """Ends of all steps, plan after plan."""

    def append(self, row: tuple[int, ...]) -> None:
        """Values in the order of NAMES. Raises OverflowError beyond 64 bits."""
        try:
            self._rows.frombytes(self._PACKED.pack(*row))  # `extend` takes more than twice as long
        except struct.error as error:
            raise OverflowError(str(error)) from None

    def __getattr__(self, name: str) -> IntArray:
        try:
            at = self.NAMES.index(name)
        except ValueError:
            raise AttributeError(f"StepColumns has no column {name!r}") from None
        return np.asarray(self._rows, dtype=np.int64).reshape(-1, len(self.NAMES))[:, at]


@dataclass(slots=True)
class Segments:
    """When requests got tokens, in order for each row: a single token (start = -1, stop = its time in ns), or the
    engine's cohort steps start .. stop - 1."""

    row: array[int] = field(default_factory=lambda: array("q"))
    start: array[int] = field(default_factory=lambda: array("q"))
    stop: array[int] = field(default_factory=lambda: array("q"))

    def add(self, row: int, start: int, stop: int) -> None:
        self.row.append(row)
        self.start.append(start)
        self.stop.append(stop)


class EngineLog(Observer):
    """Keeps the books of one engine. The driver sets `now_ns` before it asks the core for anything."""

    def __init__(self, engine: int, requests: RequestColumns) -> None:
        self.engine = engine
        self.now_ns = 0
        self.requests = requests
        self.steps = StepColumns()
        self.segments = Segments()
        self.journal = Journal()
        self.decode_ends_ns = array("q")
        """End of each cohort step that has run."""
        self.blocked_since_ns = array("q", [0])
        self.blocked_by = array("q", [BLOCKER_CODES[Blocker.NOTHING]])
        """What the head of the queue waits for, from each time on: a step function."""
        self.deferrals: Counter[str] = Counter()
        """Scheduling steps that left somebody waiting, by reason."""
        self._evicted = 0
        """Cached blocks that have lost their contents so far."""
        self._evicted_for_prompts = 0
        """Of these, how many went to steps with prompts; the others went to decodes alone."""
        self._blocked_why: Decision | None = None
        self._blocked_head: Request | None = None
        self._preempted_ns: dict[int, int] = {}
        """Rows waiting after a preemption, and since when."""

    # -- from the core

    def kept_out(self, request: Request) -> None:
        self.requests.came_in_ns[request.row] = NOT_YET

    def came_in(self, request: Request) -> None:
        self.requests.came_in_ns[request.row] = self.now_ns

    def admitted(self, request: Request) -> None:
        columns, row = self.requests, request.row
        if columns.admitted_ns[row] == NEVER:
            columns.admitted_ns[row] = self.now_ns
        else:
            columns.rehit_tokens[row] += request.hit_tokens
            self.journal.readmitted(self.now_ns, row, request.hit_tokens)
        columns.hit_tokens[row] += request.hit_tokens
        self._requeue_over(row)

    def prefilled(self, request: Request) -> None:
        self.segments.add(request.row, -1, self.now_ns)

    def decoded(self, request: Request, start: int, stop: int) -> None:
        if stop > start:
            self.segments.add(request.row, start, stop)

    def preempted(self, request: Request, lost_tokens: int, mode: PreemptionMode, asker: Request | None) -> None:
        self.requests.preemptions[request.row] += 1
        self.requests.lost_tokens[request.row] += lost_tokens
        self._preempted_ns[request.row] = self.now_ns
        self.journal.preempted(self.now_ns, request.row, mode, asker, lost_tokens)

    def swapped_in(self, request: Request, blocks: int) -> None:
        self.journal.swapped_in(self.now_ns, request.row, blocks)
        self._requeue_over(request.row)

    def _requeue_over(self, row: int) -> None:
        since = self._preempted_ns.pop(row, None)
        if since is not None:
            self.requests.requeue_ns[row] += self.now_ns - since

    def ended(self, request: Request, reason: str, detail: str) -> None:
        columns, row = self.requests, request.row
        columns.state[row] = STATE_CODES[request.state]
        columns.end_ns[row] = self.now_ns
        columns.output_tokens[row] = request.outputs
        columns.max_tokens[row] = request.max_tokens
        if reason != "stop":
            columns.reason[row] = reason
        if detail:
            columns.detail[row] = detail
        self._requeue_over(row)

    # -- from the driver

    def unfinished(self, request: Request, core: EngineCore) -> None:
        """The run was stopped while the request was alive: note how far it got."""
        columns, row = self.requests, request.row
        columns.state[row] = STATE_CODES[request.state]
        self.decoded(request, *core.delivered_run(request))
        columns.output_tokens[row] = core.delivered_tokens(request)
        columns.max_tokens[row] = request.max_tokens

    def planned(self, plan: BatchPlan, start_ns: int, core: EngineCore) -> None:
        """A plan has just been made; it starts to execute at `start_ns`."""
        shape, store = plan.shape, core.store
        tokens = pairs2 = 0
        for chunk, context in shape.prefill:
            tokens += chunk
            pairs2 += chunk * (2 * context + chunk + 1)
        self.steps.append(
            (
                self.now_ns,
                start_ns,
                shape.decode_requests,
                shape.decode_context_tokens,
                len(shape.prefill),
                tokens,
                pairs2,
                len(core.running),
                len(core.waiting) if core.front is None else core.num_waiting,
                store.total_blocks - store.free_blocks,
                store.cached_blocks,
                core.reserved_blocks,
                len(plan.preempted),
                store.total_blocks,
                plan.swapped_blocks,
                store.evicted_blocks,
            )
        )
        if store.evicted_blocks != self._evicted:
            if shape.prefill:
                self._evicted_for_prompts += store.evicted_blocks - self._evicted
            self._evicted = store.evicted_blocks
        if plan.deferred is not None or self.blocked_by[-1] != NOBODY:
            self.blocked(self.now_ns, plan.deferred, core.latest_draft.blocked)

    def blocked(self, since_ns: int, by: Decision | None, head: Request | None = None) -> None:
        """From `since_ns` on the head of the queue waits for this (None: nobody waits, or nobody has looked yet).

        `head`: whom the scan ended with; None where the answer is the same for everybody.
        """
        if by is self._blocked_why and head is self._blocked_head:
            return
        self._blocked_why, self._blocked_head = by, head
        self.journal.blocked(since_ns, by, head)
        code = BLOCKER_CODES[by.blocker] if by is not None else NOBODY
        if code != self.blocked_by[-1]:
            self.blocked_since_ns.append(since_ns)
            self.blocked_by.append(code)

    def grown(self, core: EngineCore) -> None:
        """The plans so far have taken the blocks of all their steps: beyond their first ones, decodes needed them."""
        self._evicted = core.store.evicted_blocks

    @property
    def evictions(self) -> Counter[str]:
        """Cached blocks that lost their contents, by what the room was for."""
        prompts = self._evicted_for_prompts
        return +Counter({"for prompts": prompts, "for decodes": self._evicted - prompts})

    def ran(self, plan: BatchPlan, ends_ns: list[int], deferred: Decision | None, deferred_steps: int) -> None:
        """A plan is over, after as many steps as there are ends; `deferred_steps` of them left somebody waiting."""
        self.steps.steps.append(len(ends_ns))
        self.steps.ends_ns.fromlist(ends_ns)
        if plan.decode_requests:
            self.decode_ends_ns.fromlist(ends_ns)
        if deferred is not None and deferred_steps > 0:
            self.deferrals[deferred.reason] += deferred_steps
