"""An engine's tracks: its steps as slices, counters of pool, queue and batch, and what the scheduler did to whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sim.core.plan import PreemptionMode
from sim.results.arrays import FloatArray, IntArray, view
from sim.results.blocked import WAITED_FOR, blocker_steps
from sim.results.columns import NEVER
from sim.results.events import Happening, event_table
from sim.results.journal import MODES
from sim.results.measure import Measured
from sim.results.perfetto.events import (
    SCHEDULER_THREAD,
    STEPS_THREAD,
    Event,
    Window,
    counter,
    engine_pid,
    in_place,
    instant,
    named,
    whole_slice,
)
from sim.results.steps import Plans

KV_TRACK, QUEUE_TRACK, BATCH_TRACK = "KV blocks", "requests", "batch"

HAPPENINGS = {
    Happening.PREEMPTED.value,
    Happening.SWAPPED_IN.value,
    Happening.EVICTED.value,
    Happening.KEPT_OUT.value,
    Happening.BLOCKED.value,
    Happening.ENDED.value,
}
"""What a scheduler did; of the ends, those that are no finish."""


def names(engine: int, name: str) -> list[Event]:
    pid = engine_pid(engine)
    return [
        named(pid, f"engine {engine}: {name}"),
        in_place(pid, pid),
        named(pid, "steps", thread=STEPS_THREAD),
        named(pid, "scheduler", thread=SCHEDULER_THREAD),
    ]


# -- steps


def step_slices(plans: Plans, engine: int, window: Window, most: int) -> tuple[list[Event], int]:
    """A slice per plan, or per so many plans in a row if there are more of them than `most`: (events, so many)."""
    start_ns, end_ns = plans.start_ns, plans.end_ns
    shown = np.flatnonzero((plans.steps > 0) & (end_ns >= window.from_ns) & (start_ns <= window.until_ns))
    together = max(1, -(-len(shown) // max(1, most)))
    columns = _arguments(plans, shown)
    bounds = np.arange(0, len(shown), together)
    sums = {name: np.add.reduceat(column, bounds) for name, column in columns.items() if len(bounds)}
    first, last = shown[bounds], shown[np.minimum(bounds + together, len(shown)) - 1]
    since, place = blocker_steps(plans.log)
    waits_for = place[np.searchsorted(since, plans.column("scheduled_ns")[first], side="right") - 1]
    anybody = plans.column("waiting")[first] > 0
    fixed = {"limit": plans.facts.step_budget}
    used, free = plans.column("used_blocks")[first], plans.column("total_blocks")[first]
    events = []
    for at, (low, high) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        sized = {name: column[at].item() for name, column in sums.items()}
        blocked = WAITED_FOR[waits_for[at]].value if anybody[at] else None
        arguments = {"plan": low, "plans": high - low + 1 if together > 1 else None, **sized, **fixed}
        arguments |= {"used_blocks": int(used[at]), "total_blocks": int(free[at]), "queue_waits_for": blocked}
        name = _kind(sized, together)
        bounds_ns = int(start_ns[low]), int(end_ns[high])
        events.append(whole_slice(engine_pid(engine), STEPS_THREAD, name, *bounds_ns, arguments))
    return events, together


def _arguments(plans: Plans, shown: IntArray) -> dict[str, IntArray | FloatArray]:
    """Summed where several plans are one slice; work is that of all steps."""
    steps = plans.steps[shown]
    return {
        "steps": steps,
        "decode_tokens": plans.column("decode_requests")[shown] * steps,
        "prefill_requests": plans.column("prefill_requests")[shown],
        "prefill_tokens": plans.column("prefill_tokens")[shown],
        "work": (plans.decode_work + plans.prefill_work)[shown] * steps,
        "preempted": plans.column("preempted")[shown],
        "swapped_blocks": plans.column("swapped_blocks")[shown],
    }


def _kind(sized: Mapping[str, int | float], together: int) -> str:
    """`prefill`, `decode`, `mixed`; `decode x37` of 37 steps in a row."""
    kind = "mixed" if sized["prefill_tokens"] and sized["decode_tokens"] else "decode"
    if sized["prefill_tokens"] and not sized["decode_tokens"]:
        kind = "prefill"
    return f"{kind} x{sized['steps']}" if sized["steps"] > 1 and (kind == "decode" or together > 1) else kind


# -- counters


def counters(measured: Measured, engine: int, window: Window, most: int) -> list[Event]:
    """At most so many: on change only, else the first, lowest, highest and last of each of many equal pieces."""
    plans = measured.plans[engine]
    scheduled_ns = plans.column("scheduled_ns")
    inside = np.flatnonzero((scheduled_ns >= window.from_ns) & (scheduled_ns <= window.until_ns))
    used, reserved, cached = (plans.column(name) for name in ("used_blocks", "reserved_blocks", "cached_blocks"))
    tracks = {
        KV_TRACK: {"used": used, "reserved": reserved, "cached": cached},
        QUEUE_TRACK: {
            "waiting": plans.column("waiting"),
            "running": plans.column("running"),
            "swapped": _swapped(measured, engine, scheduled_ns),
        },
        BATCH_TRACK: {
            "decodes": plans.column("decode_requests"),
            "tokens": plans.column("decode_requests") + plans.column("prefill_tokens"),
        },
    }
    events = []
    for name, series in tracks.items():
        kept = _worth_telling([column[inside] for column in series.values()], most // len(tracks))
        for at in inside[kept].tolist():
            values = {key: int(column[at]) for key, column in series.items()}
            events.append(counter(engine_pid(engine), name, int(scheduled_ns[at]), values))
    return events


def _swapped(measured: Measured, engine: int, at_ns: IntArray) -> IntArray:
    """How many have their KV on the host at some instants."""
    journal, end_ns = measured.result.logs[engine].journal, view(measured.result.requests.end_ns)
    gone = journal.preemptions()
    gone, back = gone[gone[:, 2] == MODES.index(PreemptionMode.SWAP)], journal.swap_ins()
    away = np.bincount(gone[:, 1], minlength=len(end_ns)) - np.bincount(back[:, 1], minlength=len(end_ns))
    ended = end_ns[(away > 0) & (end_ns != NEVER)]
    gone_ns, back_ns, ended_ns = gone[:, 0], back[:, 0], np.sort(ended)
    until = (np.searchsorted(times, at_ns, side="right") for times in (gone_ns, back_ns, ended_ns))
    out, home, over = until
    return np.asarray(out - home - over)


def _worth_telling(series: Sequence[IntArray], most: int) -> IntArray:
    """Places at which something changes; if these are too many, the extremes of pieces of equal length."""
    rows = np.stack(series, axis=1)
    changed = np.flatnonzero(np.append(True, (rows[1:] != rows[:-1]).any(axis=1))[: len(rows)])
    if len(changed) <= most:
        return changed
    extremes = 2 * len(series) + 2
    kept = [
        piece[where]
        for piece in np.array_split(changed, max(1, most // extremes))
        for where in (0, -1, *rows[piece].argmin(axis=0), *rows[piece].argmax(axis=0))
    ]
    return np.unique(kept)


# -- the scheduler


def scheduler_instants(measured: Measured, window: Window, most: int) -> tuple[list[Event], int]:
    """What happened to whom and why, or one in so many of these: (events, one in how many)."""
    table = event_table(measured)
    time_ns = table["time_ns"]
    wanted = table["event"].isin(HAPPENINGS) & (time_ns >= window.from_ns) & (time_ns <= window.until_ns)
    wanted &= (table["event"] != Happening.ENDED.value) | (table["what"] != "finished")
    table = table[wanted]
    one_in = max(1, -(-len(table) // max(1, most)))
    table = table.iloc[::one_in]
    events = []
    for row in table.astype(object).where(table.notna(), None).to_dict("records"):
        engine, what = row.pop("engine"), row.pop("event")
        moment = int(row.pop("time_ns"))
        args = {str(key): value for key, value in row.items()}
        name = f"{what}: {args['what']}" if args["what"] is not None else what
        events.append(instant(engine_pid(int(engine)), SCHEDULER_THREAD, name, moment, args))
    return events, one_in
