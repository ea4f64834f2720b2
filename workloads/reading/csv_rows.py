"""A CSV file's header, and one line to its fields."""

from __future__ import annotations

import csv
from collections.abc import Sequence

from workloads.config import did_you_mean
from workloads.reading.errors import RowError, first_twice, label, listed


def csv_fields(line: str) -> list[str]:
    """The fields of one line. A quoted field ends on the line where it begins."""
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise RowError(f"must be one line of CSV: {error}") from None


class CsvTable:
    """The columns that a CSV file has; each row must have as many fields."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        if twice := first_twice(names):
            raise RowError(f"column {label(twice)!r} must not appear twice")

    def positions(self, required: Sequence[str]) -> list[int]:
        """Where these columns are; `RowError` lists all that are missing, and what there is."""
        if problem := missing_columns(required, self.names):
            raise RowError(problem)
        return [self.names.index(name) for name in required]

    def fields(self, line: str) -> list[str]:
        fields = csv_fields(line)
        if len(fields) != len(self.names):
            raise RowError(f"has {len(fields)} fields, must have {len(self.names)}, as the header")
        return fields


def missing_columns(required: Sequence[str], existing: Sequence[str]) -> str | None:
    """`missing column 'x'; the file has: a, b; did you mean 'a'?`, or None where none of these is missing."""
    missing = [name for name in required if name not in existing]
    if not missing:
        return None
    spare = [name for name in existing if name not in required]
    columns = "column" if len(missing) == 1 else "columns"
    hint = did_you_mean(missing[0], spare, likeness_ratio=0.8) if len(missing) == 1 else ""
    return f"missing {columns} {', '.join(map(repr, missing))}; the file has: {listed(existing)}{hint}"


def unread_note(names: Sequence[str], read: Sequence[str]) -> tuple[str, ...]:
    """What a report should say about columns that nobody read."""
    unread = tuple(name for name in names if name not in read)
    return (f"columns not read: {listed(unread)}",) if unread else ()
