"""A `Trace` to the generic formats' own columns, exactly: reading the lines gives the same columns back."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from decimal import Decimal

from workloads.trace import UNKNOWN, IntArray, PrefixIds, Trace

Cell = int | str | Decimal | list[int] | None


def csv_lines(trace: Trace) -> Iterator[str]:
    """Header and rows of `generic-csv`, each ending in LF."""
    columns = _columns(trace)
    yield _csv_line(list(columns))
    for cells in zip(*columns.values(), strict=True):
        yield _csv_line([_csv_text(cell) for cell in cells])


def jsonl_lines(trace: Trace) -> Iterator[str]:
    """Rows of `generic-jsonl`, each ending in LF; what a request does not have is left out."""
    columns = _columns(trace)
    for cells in zip(*columns.values(), strict=True):
        given = [(name, cell) for name, cell in zip(columns, cells, strict=True) if cell is not None]
        yield "{" + ", ".join(f'"{name}": {_json_text(cell)}' for name, cell in given) + "}\n"


def _columns(trace: Trace) -> dict[str, Sequence[Cell]]:
    """Our names -> cells, for the columns that the trace has."""
    has_max_tokens = bool((trace.max_tokens != UNKNOWN).any())
    columns: dict[str, Sequence[Cell] | None] = {
        "arrival_s": _seconds(trace.arrival_ns),
        "prompt_tokens": trace.prompt_tokens.tolist(),
        "output_tokens": trace.output_tokens.tolist(),
        "max_tokens": _known(trace.max_tokens) if has_max_tokens else None,
        "request_id": _texts(trace.request_ids),
        "priority": None if trace.priority is None else trace.priority.tolist(),
        "client": _texts(trace.clients),
        "queue_timeout_s": _seconds(trace.queue_timeout_ns),
        "timeout_s": _seconds(trace.timeout_ns),
        "cancel_after_s": _seconds(trace.cancel_after_ns),
        **_prefix_columns(trace.prefix),
    }
    return {name: cells for name, cells in columns.items() if cells is not None}


def _prefix_columns(prefix: PrefixIds | None) -> dict[str, Sequence[Cell] | None]:
    if prefix is None:
        return {}
    ids = [list(ids) or None for ids in prefix.ids]
    return {
        "prefix_group_tokens": [None if own is None else prefix.group_tokens for own in ids],
        "prefix_ids": ids,
    }


def _known(column: IntArray) -> list[Cell]:
    return [None if value == UNKNOWN else value for value in column.tolist()]


def _seconds(column_ns: IntArray | None) -> list[Cell] | None:
    if column_ns is None:
        return None
    return [None if ns == UNKNOWN else Decimal(ns).scaleb(-9).normalize() for ns in column_ns.tolist()]


def _texts(texts: Sequence[str] | None) -> Sequence[Cell] | None:
    for text in texts or ():
        if not text.isprintable():
            raise ValueError(f"a request id or client must be printable text, got {text!r}")
    return None if texts is None else [text or None for text in texts]


def _csv_line(fields: list[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(fields)
    return line.getvalue()


def _csv_text(cell: Cell) -> str:
    if isinstance(cell, list):
        return " ".join(map(str, cell))
    if isinstance(cell, Decimal):
        return format(cell, "f")
    return "" if cell is None else str(cell)


def _json_text(cell: Cell) -> str:
    return format(cell, "f") if isinstance(cell, Decimal) else json.dumps(cell)
