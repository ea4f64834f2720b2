"""When tokens came out: per request and pooled over requests, from ranges of steps and never token by token.

An *event* is a moment at which a request gets output. Without speculation an event is one token; with it an event may
bring several, so gaps between events and gaps between tokens are different figures and are named apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.results.arrays import BoolArray, IntArray, SmallIntArray, view
from sim.results.columns import NEVER, EngineLog


@dataclass(frozen=True, slots=True)
class Spans:
    """Unbroken runs of events, sorted by request and then by time. Shape of each column: (num_spans,)."""

    row: SmallIntArray
    engine: SmallIntArray
    start: SmallIntArray
    """The engine's cohort step of the first event; -1 for a single event outside the cohort (a prefill's)."""
    events: SmallIntArray
    first_ns: IntArray
    last_ns: IntArray

    def pick(self, mask: BoolArray) -> Spans:
        return self if mask.all() else Spans(*(column[mask] for column in self.columns()))

    def columns(self) -> tuple[Any, ...]:
        return self.row, self.engine, self.start, self.events, self.first_ns, self.last_ns

    @property
    def opens(self) -> BoolArray:
        """Where a request's first span is."""
        return np.concatenate([np.ones(min(1, len(self.row)), bool), self.row[1:] != self.row[:-1]])


def spans(logs: Sequence[EngineLog]) -> Spans:
    """The books of all engines as one table; a request may have had tokens from several."""
    parts = [_engine_spans(index, log).columns() for index, log in enumerate(logs)]
    unsorted = [columns[0] if len(parts) == 1 else np.concatenate(columns) for columns in zip(*parts, strict=True)]
    del parts
    order = np.lexsort((unsorted[4], unsorted[0]))
    return Spans(*(unsorted.pop(0)[order] for _ in range(len(unsorted))))  # one by one: memory


def _engine_spans(index: int, log: EngineLog) -> Spans:
    """A token in flight when the run stopped never came out: ranges end where the engine's steps do."""
    ends, segments = view(log.decode_ends_ns), log.segments
    row, start, stop = view(segments.row), view(segments.start), view(segments.stop)
    single = start == NEVER
    stop = np.where(single, stop, np.minimum(stop, len(ends)))
    keep = single | (stop > start)
    row, start, single = row[keep].astype(np.int32), start[keep].astype(np.int32), single[keep]
    first_ns = stop[keep]  # and where it is a range, first its end
    last_ns = first_ns.copy()
    ranges = ~single
    events = np.ones(len(row), np.int32)
    events[ranges] = first_ns[ranges] - start[ranges]
    last_ns[ranges] = ends[first_ns[ranges] - 1]
    first_ns[ranges] = ends[start[ranges]]
    return Spans(row, np.full(len(row), index, np.int32), start, events, first_ns, last_ns)


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """Shape of each: (num_requests,); `NEVER` where there is no such thing, 0 events where nothing came out."""

    first_ns: IntArray
    last_ns: IntArray
    events: IntArray
    max_gap_ns: IntArray
    """Between two events in a row; `NEVER` with fewer than two."""


def token_times(table: Spans, logs: Sequence[EngineLog], num_requests: int) -> TokenTimes:
    first_ns, last_ns, max_gap_ns = (np.full(num_requests, NEVER, np.int64) for _ in range(3))
    events = np.zeros(num_requests, np.int64)
    if len(table.row):
        opens = np.flatnonzero(table.opens)
        closes = np.append(opens[1:], len(table.row)) - 1
        rows = table.row[opens]
        first_ns[rows] = table.first_ns[opens]
        last_ns[rows] = table.last_ns[closes]
        events[rows] = np.add.reduceat(table.events, opens)
        longest = np.maximum(_longest_inside(table, logs), _gap_before(table))
        max_gap_ns[rows] = np.maximum.reduceat(longest, opens)
    return TokenTimes(first_ns, last_ns, events, max_gap_ns)


def _gap_before(table: Spans) -> IntArray:
    """From the request's span before to this one (it was preempted, say); `NEVER` for its first. Shape: (num_spans,)"""
    gaps = np.full(len(table.row), NEVER, np.int64)
    gaps[1:] = table.first_ns[1:] - table.last_ns[:-1]
    gaps[table.opens] = NEVER
    return gaps


def _longest_inside(table: Spans, logs: Sequence[EngineLog]) -> IntArray:
    """The longest gap inside each span; `NEVER` in spans of one event. Shape: (num_spans,)"""
    longest = np.full(len(table.row), NEVER, np.int64)
    for index, log in enumerate(logs):
        inside = np.flatnonzero((table.engine == index) & (table.events > 1))
        if len(inside):
            # Sorted by start, what `reduceat` reads between two ranges is no more than the steps there are.
            inside = inside[np.argsort(table.start[inside], kind="stable")]
            start, gaps = table.start[inside], np.append(np.diff(view(log.decode_ends_ns)), 0)
            bounds = np.stack([start, start + table.events[inside] - 1], axis=1).ravel()
            longest[inside] = np.maximum.reduceat(gaps, bounds)[::2]
    return longest


@dataclass(frozen=True, slots=True)
class Gaps:
    """Times between outputs: `gap_ns[i]` occurs `count[i]` times. Not sorted, all counts > 0."""

    gap_ns: IntArray
    count: IntArray

    def with_zeros(self, zeros: int) -> Gaps:
        """The same and so many gaps of 0: tokens that came together with another one."""
        if not zeros:
            return self
        return Gaps(np.append(self.gap_ns, 0), np.append(self.count, zeros))


def event_gaps(table: Spans, logs: Sequence[EngineLog]) -> Gaps:
    """All gaps between consecutive events of the same request, pooled over the requests in the table."""
    between = _gap_before(table)
    between = between[between != NEVER]
    gaps, counts = [between], [np.ones(len(between), np.int64)]
    for index, log in enumerate(logs):
        ends = view(log.decode_ends_ns)
        gaps.append(np.diff(ends))
        counts.append(_coverage(table, index, len(ends), last=-1)[: max(0, len(ends) - 1)])
    count = np.concatenate(counts)
    del counts
    some = count > 0
    count = count[some]
    return Gaps(np.concatenate(gaps)[some], count)


def events_in_time(table: Spans, logs: Sequence[EngineLog]) -> tuple[IntArray, IntArray]:
    """When output came and how many events it was: (time_ns, events), in no order."""
    single = table.start == NEVER
    times, events = [table.first_ns[single]], [table.events[single]]
    for index, log in enumerate(logs):
        times.append(view(log.decode_ends_ns))
        events.append(_coverage(table, index, len(log.decode_ends_ns), last=0)[: len(log.decode_ends_ns)])
    return np.concatenate(times), np.concatenate(events)


def _coverage(table: Spans, engine: int, num_steps: int, *, last: int) -> IntArray:
    """How many spans of an engine cover each of its cohort steps. `last` = -1 leaves out every span's last step."""
    mine = (table.engine == engine) & (table.start != NEVER)
    start, stop = table.start[mine], table.start[mine] + table.events[mine] + last
    covered = np.bincount(start, minlength=num_steps + 1)
    covered -= np.bincount(stop, minlength=num_steps + 1)
    return np.cumsum(covered, out=covered)


def expand(log: EngineLog, row: int) -> IntArray:
    """Every event of one request on one engine, in order. Shape: (num_events,)"""
    mine = _engine_spans(0, log)
    mine = mine.pick(mine.row == row)
    ends = view(log.decode_ends_ns)
    parts = [
        ends[start : start + events] if start != NEVER else np.array([first_ns])
        for start, events, first_ns in zip(mine.start, mine.events, mine.first_ns, strict=True)
    ]
    return np.concatenate([np.zeros(0, np.int64), *parts])
