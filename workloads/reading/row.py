"""What a dialect makes of one row, and how a dialect is plugged in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from workloads.reading.csv_rows import csv_fields
from workloads.reading.errors import MAX_COLUMNS, RowError
from workloads.reading.generic_columns import GenericColumns
from workloads.reading.json_rows import json_object
from workloads.reading.limits import ReadLimits
from workloads.trace import UNKNOWN


@dataclass(frozen=True, slots=True)
class Extras:
    """What only some traces say of a request; `None` or UNKNOWN where this row does not."""

    request_id: str | None = None
    priority: int | None = None
    client: str | None = None
    queue_timeout_ns: int = UNKNOWN
    timeout_ns: int = UNKNOWN
    cancel_after_ns: int = UNKNOWN


@dataclass(slots=True)
class Row:
    """One request as the file tells it. (Not frozen: building one is on the path of every row.)"""

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int = UNKNOWN
    prefix_ids: tuple[int, ...] | None = None
    extras: Extras | None = None


@dataclass(frozen=True, slots=True)
class FirstLine:
    """The first line of a file: enough to tell the dialect."""

    text: str
    is_json: bool
    keys: tuple[str, ...]
    """The header's column names, or the first object's keys."""

    @staticmethod
    def of(text: str, limits: ReadLimits) -> FirstLine:
        """`RowError` where the line looks like JSON and is not, or has too many names."""
        is_json = text.lstrip().startswith("{")
        keys = tuple(json_object(text, limits.json_depth)) if is_json else tuple(map(str.strip, csv_fields(text)))
        if len(keys) > MAX_COLUMNS:
            raise RowError(f"has {len(keys)} columns, must have at most {MAX_COLUMNS}")
        return FirstLine(text, is_json, keys)


class Parser(Protocol):
    """Reads the rows of one file in order."""

    has_header: bool
    """Whether the first line is not a row."""
    arrival_column: str
    from_first: bool
    """Whether arrivals are wall-clock times: the first request's becomes 0. Otherwise they are offsets and stay."""

    def parse(self, line: str, /) -> Row:
        """The row on this line, or `RowError`."""
        ...

    def group_tokens(self) -> int | None:
        """Tokens behind each prefix id, once all rows are read; None where the trace has no ids."""
        ...

    def finish(self) -> tuple[str, ...]:
        """What a report should say, once all rows are read; `RowError` where the file as a whole is wrong."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """One trace format. `start` may raise `RowError` about the first line."""

    name: str
    matches: Callable[[FirstLine], bool]
    start: Callable[[FirstLine, ReadLimits], Parser]
    start_named: Callable[[FirstLine, ReadLimits, GenericColumns], Parser] | None = None
    """With the columns' names, for dialects that take names."""
