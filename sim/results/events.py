"""What happened, as a table: one row per event, in order. `tokenwork explain` tells a request's story from it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.core.lifecycle import State
from sim.results.arrays import IntArray, view
from sim.results.columns import NEVER, NOT_YET, STATES, EngineLog
from sim.results.journal import BLOCKERS, MODES, NO_ROW, NOBODY
from sim.results.measure import Measured
from sim.results.run import RunResult

if TYPE_CHECKING:
    import pandas as pd


class Happening(Enum):
    """In the order in which they are told at one instant: deliveries come before scheduling."""

    ARRIVED = "arrived"
    """`num_requests`: who waited then."""
    KEPT_OUT = "kept_out"
    """It has to wait outside the engine's own queue."""
    CAME_IN = "came_in"
    """From outside into that queue."""
    FIRST_TOKEN = "first_token"
    ENDED = "ended"
    """`what`: its state, with `reason`, `detail`, and the `tokens` that came out."""
    PREEMPTED = "preempted"
    """`what`: the mode; `other_id`: for whose next block; `tokens`: KV entries lost."""
    SWAPPED_IN = "swapped_in"
    ADMITTED = "admitted"
    """`tokens`: found cached."""
    EVICTED = "evicted"
    """`blocks`: cached blocks dropped since the plan before; `what`: for prompts or for decodes."""
    BLOCKED = "blocked"
    """From then on the scan of the queue ends at `request_id` (none: at anybody) because of `reason`; `what`: what is
    lacking (`nothing`: nobody is blocked). `blocks`: free ones, `num_requests`: who runs."""


COLUMNS = ("time_ns", "engine", "event", "request_id", "other_id", "what", "reason", "detail", "tokens", "blocks",
           "num_requests")  # fmt: skip
_TEXTS = ("event", "request_id", "other_id", "what", "reason", "detail")
_RANK = {happening.value: rank for rank, happening in enumerate(Happening)}
_LAST = len(_RANK)
"""Rank of an end that comes of scheduling."""


def event_table(run: RunResult | Measured) -> pd.DataFrame:
    """One row per event, by time; what an event does not have is missing. Columns: `COLUMNS`."""
    import pandas as pd

    measured = run if isinstance(run, Measured) else Measured(run)
    frames = [_frame(**columns) for columns in _of_requests(measured)]
    for engine, log in enumerate(measured.result.logs):
        frames += [_frame(engine=engine, **columns) for columns in _of_engine(measured, log)]
    table = pd.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True)
    failed = (table["event"] == Happening.ENDED.value) & table["what"].isin([State.FAILED.value, State.REJECTED.value])
    rank = table["event"].map(_RANK).astype("int64").mask(failed, _LAST)
    return table.iloc[np.lexsort((rank, table["time_ns"]))].reset_index(drop=True)


def _frame(*, event: Happening, time_ns: IntArray, **columns: Any) -> pd.DataFrame:
    import pandas as pd

    data: dict[str, Any] = {"time_ns": time_ns, "event": event.value, **columns}
    frame = pd.DataFrame({name: data.get(name) for name in COLUMNS}, index=range(len(time_ns)))
    numbers = {name: "Int64" for name in COLUMNS if name not in (*_TEXTS, "time_ns")}
    return frame.astype(dict.fromkeys(_TEXTS, "string") | numbers)


def _of_requests(m: Measured) -> list[dict[str, Any]]:
    """What the columns of requests hold: arrivals, first admissions, first tokens, ends."""
    books, arrived = m.result.requests, m.arrived.copy()
    arrived[: m.result.initial_rows] = False
    ids, engine, hits = _ids(m), view(books.engine), view(books.hit_tokens) - view(books.rehit_tokens)
    came_in, end_ns = view(books.came_in_ns), view(books.end_ns)

    def of(where: Any, event: Happening, time_ns: IntArray, **columns: Any) -> dict[str, Any]:
        picked = {name: column[where] for name, column in columns.items()}
        return {"event": event, "time_ns": time_ns[where], "engine": engine[where], "request_id": ids[where], **picked}

    return [
        of(arrived, Happening.ARRIVED, m.result.trace.arrival_ns, num_requests=view(books.waiting_seen)),
        of(came_in != NEVER, Happening.KEPT_OUT, m.result.trace.arrival_ns),
        of((came_in != NEVER) & (came_in != NOT_YET), Happening.CAME_IN, came_in),
        of(m.admitted_ns != NEVER, Happening.ADMITTED, m.admitted_ns, tokens=hits),
        of(m.tokens.events > 0, Happening.FIRST_TOKEN, m.tokens.first_ns),
        of(
            end_ns != NEVER,
            Happening.ENDED,
            end_ns,
            what=np.array([STATES[code].value for code in books.state], object),
            reason=_texts(books.reason, len(ids)),
            detail=_texts(books.detail, len(ids)),
            tokens=view(books.output_tokens),
        ),
    ]


def _of_engine(m: Measured, log: EngineLog) -> list[dict[str, Any]]:
    journal, ids = log.journal, np.array([*_ids(m), None], object)  # ids[-1]: nobody
    again, gave_way, back = journal.readmissions(), journal.preemptions(), journal.swap_ins()
    heads, reasons = journal.heads(), np.array(journal.reasons, object)
    heads = heads[(heads[:, 2] != NOBODY) | (np.arange(len(heads)) > 0)]
    assert NO_ROW == -1
    at_plan = np.searchsorted(log.steps.scheduled_ns, heads[:, 0], side="right") - 1
    known = at_plan >= 0 if len(log.steps.steps) else np.zeros(len(heads), bool)
    free = log.steps.total_blocks - log.steps.used_blocks
    return [
        {"event": Happening.ADMITTED, "time_ns": again[:, 0], "request_id": ids[again[:, 1]], "tokens": again[:, 2]},
        {
            "event": Happening.PREEMPTED,
            "time_ns": gave_way[:, 0],
            "request_id": ids[gave_way[:, 1]],
            "other_id": ids[gave_way[:, 3]],
            "what": np.array([mode.value for mode in MODES], object)[gave_way[:, 2]],
            "tokens": gave_way[:, 4],
        },
        {"event": Happening.SWAPPED_IN, "time_ns": back[:, 0], "request_id": ids[back[:, 1]], "blocks": back[:, 2]},
        {
            "event": Happening.BLOCKED,
            "time_ns": heads[:, 0],
            "request_id": ids[heads[:, 1]],
            "what": np.array([blocker.value for blocker in BLOCKERS], object)[heads[:, 2]],
            "reason": reasons[heads[:, 3]],
            "blocks": _picked(free, at_plan, known),
            "num_requests": _picked(log.steps.running, at_plan, known),
        },
        _evictions(log),
    ]


def _evictions(log: EngineLog) -> dict[str, Any]:
    """Blocks dropped between one plan and the next, those of a plan's own making with it."""
    dropped = np.diff(log.steps.evicted_blocks, prepend=0)
    some = dropped > 0
    cause = np.where(log.steps.prefill_requests > 0, "prompts", "decodes").astype(object)
    times = {"event": Happening.EVICTED, "time_ns": log.steps.scheduled_ns[some]}
    return {**times, "blocks": dropped[some], "what": cause[some]}


def _picked(values: IntArray, at: IntArray, known: Any) -> Any:
    out = np.full(len(at), None, object)
    out[known] = values[at[known]]
    return out


def _ids(m: Measured) -> Any:
    ids = m.result.trace.request_ids
    return np.array(ids if ids is not None else [str(row) for row in range(len(m.result.trace))], object)


def _texts(by_row: dict[int, str], rows: int) -> Any:
    out = np.full(rows, None, object)
    for row, text in by_row.items():
        out[row] = text
    return out
