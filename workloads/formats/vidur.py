"""Vidur's processed traces: CSV with `arrived_at` (seconds since the start), `num_prefill_tokens`, `num_decode_tokens`.

Vidur also has files of lengths without times; those are no trace. Source: microsoft/vidur, data/processed_traces.
"""

from __future__ import annotations

from functools import partial

from workloads.reading.errors import RowError, listed
from workloads.reading.limits import ReadLimits
from workloads.reading.plain_csv import PlainCsvParser
from workloads.reading.registry import register
from workloads.reading.row import Dialect, FirstLine
from workloads.reading.values import time_ns

_TIME, _PROMPT, _OUTPUT = _COLUMNS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")


def _matches(first: FirstLine) -> bool:
    return not first.is_json and not {_PROMPT, _OUTPUT}.isdisjoint(first.keys)


def _start(first: FirstLine, limits: ReadLimits) -> PlainCsvParser:
    if _TIME not in first.keys and {_PROMPT, _OUTPUT} <= set(first.keys):
        raise RowError(
            f"missing column {_TIME!r}: these are lengths without arrival times; the file has: {listed(first.keys)}"
        )
    arrival_ns = partial(time_ns, _TIME, unit="s")
    return PlainCsvParser(first, limits, columns=_COLUMNS, arrival_ns=arrival_ns, from_first=False)


register(Dialect("vidur", _matches, _start))
