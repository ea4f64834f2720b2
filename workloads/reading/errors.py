"""What can be wrong with a trace, and how a stranger's text is shown."""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_COLUMNS = 1000
"""Of one file: its names are compared with each other and with ours."""

_PLAIN = re.compile(r"[A-Za-z0-9_.+:-]+")
_SHOWN_CHARACTERS = 40


class TraceError(ValueError):
    """A trace that cannot be used. Reads `conv.csv:42: ContextTokens=-3 must be >= 1`."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        """`name:line`, or the name alone where no line is to blame."""
        self.problem = problem


class RowError(Exception):
    """A row that is malformed; the reader adds the place."""


class FailedRow(RowError):
    """A well-formed row that records a request which failed when the trace was taken."""


def shown(value: object) -> str:
    """The value, short and safe to print: anything beyond a plain word is quoted and escaped."""
    text = str(value)
    cut = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
    return cut if _PLAIN.fullmatch(cut) else repr(cut)


def named(name: str, value: object) -> str:
    """How an error begins: `name=value must be ...`, `name is empty, must be ...`."""
    if value is None:
        return f"{label(name)} is missing,"
    return f"{label(name)} is empty," if value == "" else f"{label(name)}={shown(value)}"


def label(name: str) -> str:
    """A column's or file's name, which may be a stranger's text as well: bare where it is printable and short."""
    return name if name.isprintable() and 0 < len(name) <= 2 * _SHOWN_CHARACTERS else shown(name)


def listed(names: Sequence[str]) -> str:
    """Column names for an error: the first twenty."""
    more = f", and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(label(name) for name in names[:20]) + more


def first_twice(names: Sequence[str]) -> str | None:
    """The first name that has come before."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
