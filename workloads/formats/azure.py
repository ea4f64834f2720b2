"""Azure LLM inference traces of 2023 and 2024: `TIMESTAMP,ContextTokens,GeneratedTokens`, wall clock.

2023 writes naive times with 7 fractional digits (`2023-11-16 18:17:03.9799600`), 2024 six and an offset
(`2024-05-10 00:00:00.009930+00:00`); a whole second may stand without a fraction.
Source: Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md and 2024.md.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from workloads.reading.errors import RowError, named
from workloads.reading.limits import ReadLimits
from workloads.reading.plain_csv import PlainCsvParser
from workloads.reading.registry import register
from workloads.reading.row import Dialect, FirstLine
from workloads.reading.values import MAX_NS

_TIME, _PROMPT, _OUTPUT = _COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_WALL_CLOCK = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2})?"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class WallClock:
    """Times of one file in exact nanoseconds since 1970. A time without an offset counts as UTC; no file has both."""

    def __init__(self) -> None:
        self._has_offset: bool | None = None
        self._second, self._second_ns = "", 0

    def ns(self, text: str) -> int:
        found = _WALL_CLOCK.fullmatch(text)
        if found is None:
            raise RowError(f"{named(_TIME, text)} must be a time like 2023-11-16 18:17:03.9799600")
        second, fraction, offset = found.groups()
        if second != self._second:
            self._second, self._second_ns = second, _second_ns(text, second)
        at_ns = self._second_ns + (int(fraction.ljust(9, "0")) if fraction else 0) - self._offset_ns(text, offset)
        if not 0 <= at_ns <= MAX_NS:
            raise RowError(f"{named(_TIME, text)} must be in the years 1970 to 2115")
        return at_ns

    def _offset_ns(self, text: str, offset: str | None) -> int:
        if self._has_offset is None:
            self._has_offset = offset is not None
        if self._has_offset != (offset is not None):
            rule = "have a UTC offset" if self._has_offset else "have no UTC offset"
            raise RowError(f"{named(_TIME, text)} must {rule}, as the rows before")
        if offset is None or offset == "Z":
            return 0
        minutes = int(offset[1:3]) * 60 + int(offset[4:6])
        return minutes * 60 * 10**9 * (-1 if offset[0] == "-" else 1)


def _second_ns(text: str, second: str) -> int:
    try:
        since = datetime.fromisoformat(second).replace(tzinfo=UTC) - _EPOCH
    except ValueError:
        raise RowError(f"{named(_TIME, text)} must be a date and time that exist") from None
    return since // timedelta(seconds=1) * 10**9


def _matches(first: FirstLine) -> bool:
    return not first.is_json and not {_PROMPT, _OUTPUT}.isdisjoint(first.keys)


def _start(first: FirstLine, limits: ReadLimits) -> PlainCsvParser:
    return PlainCsvParser(first, limits, columns=_COLUMNS, arrival_ns=WallClock().ns, from_first=True)


register(Dialect("azure", _matches, _start))
