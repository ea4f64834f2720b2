"""Requests as lanes: one slice for the whole of it, and nested in it what it did from when to when."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sim.core.plan import PreemptionMode
from sim.results.arrays import IntArray, view
from sim.results.columns import NEVER, NOT_YET
from sim.results.journal import MODES
from sim.results.measure import Measured
from sim.results.perfetto.events import Event, Window, in_place, lane, named, requests_pid

EVENTS_EACH = 8
"""Of a request that is queued, prefills and decodes: four slices."""
EXAMPLES = (50.0, 99.0)
"""Requests at these percentiles of TTFT and of E2E are always there."""

OUTSIDE, QUEUED, PREFILL, DECODE, PREEMPTED, SWAPPED = "outside", "queued", "prefill", "decode", "preempted", "swapped"
_BACK = "back"
"""From the host, to whatever it did before."""


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    from_ns: int
    until_ns: int


@dataclass(frozen=True, slots=True)
class Sampled:
    rows: IntArray
    one_in: int
    """Of the requests that nothing went wrong with, one in so many; and of all, if even the others are too many."""


def names(engine: int, name: str) -> list[Event]:
    pid = requests_pid(engine)
    return [named(pid, f"requests of engine {engine}: {name}"), in_place(pid, pid)]


# -- which


def sample(measured: Measured, window: Window, most_events: int) -> Sampled:
    """All requests if they fit; else those that were lost, gave way or missed a target, examples, some of the rest."""
    arrival_ns, until_ns = measured.result.trace.arrival_ns, _until_ns(measured)
    there = measured.arrived & (arrival_ns <= window.until_ns) & (until_ns >= window.from_ns)
    rows = np.flatnonzero(there)
    room = max(1, most_events // EVENTS_EACH)
    if len(rows) <= room:
        return Sampled(rows, 1)
    troubled = ~measured.served | (view(measured.result.requests.preemptions) > 0)
    if measured.slo_each:
        troubled |= ~measured.slo_met
    troubled[_examples(measured)] = True
    if troubled[rows].sum() > room // 2:
        troubled[:] = False
    rest = room - int(troubled[rows].sum())
    one_in = -(-int((~troubled[rows]).sum()) // max(1, rest))
    seed = measured.result.scenario.get("seed", 0)
    kept = [row for row in rows.tolist() if troubled[row] or _drawn(seed, row) % one_in == 0]
    return Sampled(np.array(kept[:room], np.int64), one_in)


def _drawn(seed: int, row: int) -> int:
    """A number of its own for each request, the same in every run."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{row}".encode(), digest_size=8).digest(), "big")


def _examples(measured: Measured) -> list[int]:
    served = np.flatnonzero(measured.served)
    if not len(served):
        return []
    order = [served[np.argsort(times[served], kind="stable")] for times in (measured.ttft_ns, measured.e2e_ns)]
    return [int(rows[int(percent / 100 * (len(rows) - 1))]) for rows in order for percent in EXAMPLES]


def _until_ns(measured: Measured) -> IntArray:
    end_ns = view(measured.result.requests.end_ns)
    return np.where(end_ns == NEVER, measured.end_ns, end_ns)


# -- what each did


class Marks:
    """The instants at which requests began to do something else; only of those that are shown."""

    def __init__(self, measured: Measured, rows: IntArray) -> None:
        self._marks: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
        self._initial_rows = measured.result.initial_rows
        books, arrival_ns = measured.result.requests, measured.result.trace.arrival_ns
        for row in rows.tolist():
            came_in_ns, admitted_ns = books.came_in_ns[row], books.admitted_ns[row]
            self._add(row, int(arrival_ns[row]), 0, self._first(row, came_in_ns))
            if came_in_ns not in (NEVER, NOT_YET):
                self._add(row, came_in_ns, 1, QUEUED)
            if admitted_ns != NEVER and row >= self._initial_rows:
                self._add(row, admitted_ns, 4, PREFILL)
        shown = np.zeros(len(measured.arrived), bool)
        shown[rows] = True
        self._add_tokens(measured, shown)
        self._add_journals(measured, shown)

    def _first(self, row: int, came_in_ns: int) -> str:
        if row < self._initial_rows:
            return DECODE
        return QUEUED if came_in_ns == NEVER else OUTSIDE

    def _add(self, row: int, time_ns: int, rank: int, phase: str) -> None:
        """`rank`: tokens come out before anybody gives way, and that is before anybody comes back."""
        self._marks[row].append((time_ns, rank, phase))

    def _add_tokens(self, measured: Measured, shown: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> None:
        """Where a prompt is complete, its first token comes out by itself."""
        spans = measured.spans
        mine = shown[spans.row] & (spans.start == NEVER)
        for row, time_ns in zip(spans.row[mine].tolist(), spans.first_ns[mine].tolist(), strict=True):
            self._add(row, time_ns, 2, DECODE)

    def _add_journals(self, measured: Measured, shown: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> None:
        for log in measured.result.logs:
            preemptions, readmissions, swap_ins = (
                events[shown[events[:, 1]]].tolist()
                for events in (log.journal.preemptions(), log.journal.readmissions(), log.journal.swap_ins())
            )
            for time_ns, row, mode, *_ in preemptions:
                self._add(row, time_ns, 3, SWAPPED if MODES[mode] is PreemptionMode.SWAP else PREEMPTED)
            for time_ns, row, *_ in readmissions:
                self._add(row, time_ns, 4, PREFILL)
            for time_ns, row, *_ in swap_ins:
                self._add(row, time_ns, 4, _BACK)

    def phases(self, row: int, until_ns: int) -> list[Phase]:
        """Without gaps, and no two in a row of one name."""
        begun: list[tuple[int, str]] = []
        before = now = QUEUED
        for time_ns, _, name in sorted(self._marks[row]):
            away = now in (PREEMPTED, SWAPPED)
            if not away:
                before = now
            if name == DECODE and away:  # a token that was in flight when it gave way
                before = DECODE
                continue
            now = before if name == _BACK else name
            if not begun or begun[-1][1] != now:
                begun.append((time_ns, now))
        ends = [time_ns for time_ns, _ in begun[1:]] + [until_ns]
        return [Phase(name, start, max(start, end)) for (start, name), end in zip(begun, ends, strict=True)]


def lanes(measured: Measured, rows: IntArray) -> Iterable[Event]:
    """Parents first, children one after the other, and the parent's end after theirs."""
    marks, until_ns = Marks(measured, rows), _until_ns(measured)
    trace, books = measured.result.trace, measured.result.requests
    for row in rows.tolist():
        pid = requests_pid(books.engine[row])
        track = f"{books.engine[row]}.{row}"
        args = {
            "id": trace.request_ids[row] if trace.request_ids is not None else str(row),
            "client": trace.clients[row] if trace.clients is not None else None,
            "prompt_tokens": int(trace.prompt_tokens[row]),
            "output_tokens": books.output_tokens[row],
            "end": measured.state_of(row).value,
            "reason": books.reason.get(row),
            "preemptions": books.preemptions[row] or None,
            "slo_met": bool(measured.slo_met[row]) if measured.slo_each else None,
        }
        phases = marks.phases(row, int(until_ns[row]))
        opening, closing = lane(pid, track, "request", phases[0].from_ns, phases[-1].until_ns, args)
        yield from opening
        for phase in phases if closing else ():
            begin, end = lane(pid, track, phase.name, phase.from_ns, phase.until_ns, {})
            yield from begin
            yield from end
        yield from closing
