"""Trace events: the few kinds that we write, times in whole microseconds, text that cannot act."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sim.results.wording import clipped

NS_PER_US = 1000
LONGEST_TEXT = 200

STEPS_THREAD, SCHEDULER_THREAD = 1, 2

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Window:
    """What part of the run is wanted: whatever is there at some time from `from_ns` to `until_ns`."""

    from_ns: int
    until_ns: int


def engine_pid(engine: int) -> int:
    return 2 * engine + 1


def requests_pid(engine: int) -> int:
    """Requests are a process of their own, beside their engine's."""
    return 2 * engine + 2


def micros(time_ns: int) -> int:
    """Both ends of a slice are cut off to whole microseconds, so that slices that touch do not overlap."""
    return time_ns // NS_PER_US


def plain(args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as JSON has them, without those that are not known; foreign text is clipped and made visible."""
    return {
        key: clipped(value, LONGEST_TEXT) if isinstance(value, str) else value
        for key, value in args.items()
        if value is not None
    }


def named(pid: int, name: str, *, thread: int | None = None) -> Event:
    """The name of a process, or of one of its threads."""
    what = {"name": "process_name"} if thread is None else {"name": "thread_name", "tid": thread}
    return {"ph": "M", "pid": pid, "ts": 0, **what, "args": {"name": clipped(name, LONGEST_TEXT)}}


def in_place(pid: int, place: int) -> Event:
    """Where a process stands in the list."""
    return {"ph": "M", "pid": pid, "ts": 0, "name": "process_sort_index", "args": {"sort_index": place}}


def whole_slice(pid: int, thread: int, name: str, from_ns: int, until_ns: int, args: Mapping[str, Any]) -> Event:
    """A slice of a thread; where nothing of it is left in microseconds, an instant."""
    start, duration = micros(from_ns), micros(until_ns) - micros(from_ns)
    args = plain({**args, "start_ns": from_ns, "duration_ns": until_ns - from_ns})
    event = {"name": name, "pid": pid, "tid": thread, "ts": start, "args": args}
    return {"ph": "X", **event, "dur": duration} if duration else {"ph": "i", "s": "t", **event}


def instant(pid: int, thread: int, name: str, time_ns: int, args: Mapping[str, Any]) -> Event:
    args = plain({**args, "time_ns": time_ns})
    return {"ph": "i", "s": "t", "name": name, "pid": pid, "tid": thread, "ts": micros(time_ns), "args": args}


def counter(pid: int, name: str, time_ns: int, values: Mapping[str, int | float]) -> Event:
    return {"ph": "C", "name": name, "pid": pid, "ts": micros(time_ns), "args": dict(values)}


def lane(
    pid: int, track: str, name: str, from_ns: int, until_ns: int, args: Mapping[str, Any]
) -> tuple[list[Event], list[Event]]:
    """A slice of a request: what to write at its beginning, and at its end after all that is nested in it."""
    common = {"cat": "request", "name": name, "pid": pid, "tid": 1, "id2": {"local": track}}
    start, end = micros(from_ns), micros(until_ns)
    args = plain({**args, "start_ns": from_ns, "duration_ns": until_ns - from_ns})
    if start == end:
        return [{"ph": "n", **common, "ts": start, "args": args}], []
    return [{"ph": "b", **common, "ts": start, "args": args}], [{"ph": "e", **common, "ts": end}]
