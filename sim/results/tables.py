"""Requests and steps as tables: pandas for notebooks, Parquet files for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sim.results.arrays import BoolArray, FloatArray, IntArray, view
from sim.results.columns import NEVER, STATES
from sim.results.measure import NS_PER_S, Measured
from sim.results.run import RunResult
from sim.results.steps import Plans
from workloads.trace import UNKNOWN

if TYPE_CHECKING:
    import pandas as pd


def request_table(run: RunResult | Measured) -> pd.DataFrame:
    """One row per request of the workload, in order of arrival; what did not happen is NaN, never 0.

    Index: request_id. Times in seconds; `end` is the state at the end (`not_offered`: the run stopped before).
    """
    import pandas as pd

    measured = run if isinstance(run, Measured) else Measured(run)
    result, trace, books = measured.result, measured.result.trace, measured.result.requests
    offered, admitted = measured.arrived, measured.admitted
    data = {
        "arrival_s": trace.arrival_ns / NS_PER_S,
        "queue_s": _seconds(measured.queue_ns),
        "requeue_s": _where(view(books.requeue_ns) / NS_PER_S, ~(view(books.preemptions) == 0)),
        "ttft_s": _seconds(measured.ttft_ns),
        "tpot_s": _seconds(measured.tpot_ns),
        "e2e_s": _seconds(measured.e2e_ns),
        "max_itl_s": _seconds(measured.tokens.max_gap_ns),
        "end_s": _seconds(view(books.end_ns)),
        "prompt_tokens": trace.prompt_tokens,
        "output_tokens": _where(measured.output_tokens, offered),
        "max_tokens": _where(view(books.max_tokens), offered),
        "end": [STATES[code].value if here else "not_offered" for code, here in zip(books.state, offered, strict=True)],
        "reason": _texts(books.reason, len(trace)),
        "detail": _texts(books.detail, len(trace)),
        "client": _texts(dict(enumerate(trace.clients or ())), len(trace)),
        "priority": _where(trace.priority, trace.priority != UNKNOWN) if trace.priority is not None else np.nan,
        "engine": _where(view(books.engine), offered),
        "preemptions": _where(view(books.preemptions), admitted),
        "lost_tokens": _where(view(books.lost_tokens), admitted),
        "hit_tokens": _where(view(books.hit_tokens), admitted),
        "waiting_seen": _where(view(books.waiting_seen), offered),
        "slo_met": measured.slo_met if measured.slo_each else np.nan,
    }
    ids = trace.request_ids if trace.request_ids is not None else [str(row) for row in range(len(trace))]
    assert len(ids) == len(result.requests.state)
    return pd.DataFrame(data).set_index(pd.Index(list(ids), name="request_id", dtype=object))


def _seconds(time_ns: IntArray | FloatArray) -> FloatArray:
    return np.where(time_ns == NEVER, np.nan, time_ns / NS_PER_S)


def _where(values: IntArray | FloatArray, known: BoolArray) -> FloatArray:
    return np.where(known, values, np.nan)


def _texts(by_row: dict[int, str], rows: int) -> pd.Series[str]:
    import pandas as pd

    return pd.Series(by_row, dtype="string").reindex(range(rows))


def step_table(run: RunResult | Measured) -> pd.DataFrame:
    """One row per plan: its first step's shape, and how many steps it came to (`steps`). Index: plan."""
    import pandas as pd

    measured = run if isinstance(run, Measured) else Measured(run)
    frames = [pd.DataFrame(_plan_columns(engine, plans)) for engine, plans in enumerate(measured.plans)]
    return pd.concat(frames, ignore_index=True).rename_axis("plan")


def _plan_columns(engine: int, plans: Plans) -> dict[str, IntArray | FloatArray | int]:
    counts = (
        "decode_requests",
        "decode_context_tokens",
        "prefill_requests",
        "prefill_tokens",
        "running",
        "waiting",
        "used_blocks",
        "cached_blocks",
        "reserved_blocks",
        "preempted",
    )
    times: dict[str, IntArray | FloatArray | int] = {
        "engine": np.full(len(plans.steps), engine),
        "scheduled_s": plans.column("scheduled_ns") / NS_PER_S,
        "start_s": plans.start_ns / NS_PER_S,
        "end_s": plans.end_ns / NS_PER_S,
        "steps": plans.steps,
    }
    work = {"decode_work": plans.decode_work, "prefill_work": plans.prefill_work}
    return times | {name: plans.column(name) for name in counts} | work


def write_parquet(table: pd.DataFrame, path: Path, *, index: bool = True) -> None:
    """The same bytes for the same table: only our columns and their types go in, no metadata of pandas."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = table.reset_index() if index else table
    arrow = pa.Table.from_pandas(columns, preserve_index=False).replace_schema_metadata(None)
    pq.write_table(arrow, path, compression="zstd")
