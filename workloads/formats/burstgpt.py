"""BurstGPT: `Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type`, seconds since a recording's start.

A row with 0 response tokens records a failed request. Version 3 adds `Session ID,Elapsed time`; only what is needed is
read, by name. Source: HPMLL/BurstGPT; cases/CASES.md E3.
"""

from __future__ import annotations

from functools import partial

from workloads.reading.limits import ReadLimits
from workloads.reading.plain_csv import PlainCsvParser
from workloads.reading.registry import register
from workloads.reading.row import Dialect, FirstLine
from workloads.reading.values import time_ns

_TIME, _PROMPT, _OUTPUT = _COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


def _matches(first: FirstLine) -> bool:
    return not first.is_json and not {_PROMPT, _OUTPUT}.isdisjoint(first.keys)


def _start(first: FirstLine, limits: ReadLimits) -> PlainCsvParser:
    arrival_ns = partial(time_ns, _TIME, unit="s")
    return PlainCsvParser(first, limits, columns=_COLUMNS, arrival_ns=arrival_ns, from_first=True)


register(Dialect("burstgpt", _matches, _start))
