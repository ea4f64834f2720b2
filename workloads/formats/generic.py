"""Anybody's CSV or JSONL: columns by name, with declared units. Our own columns need no declaration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from workloads.prefix import PrefixChain
from workloads.reading.csv_rows import CsvTable, unread_note
from workloads.reading.errors import MAX_COLUMNS, RowError, named
from workloads.reading.generic_columns import GenericColumns, NameCheck
from workloads.reading.json_rows import json_object
from workloads.reading.limits import ReadLimits
from workloads.reading.registry import register
from workloads.reading.row import Dialect, Extras, FirstLine, Row
from workloads.reading.values import lengths, prefix_ids, time_ns, whole_number
from workloads.trace import UNKNOWN

_MAX_PRIORITY: Final = 2**31 - 1
_TEXT_CHARACTERS: Final = 200

Value = Callable[[str], object]
"""Role -> what the row has there; None or "" where it has nothing."""


class GenericRows:
    """A row's values to a `Row`, whatever the file's syntax."""

    def __init__(self, columns: GenericColumns, limits: ReadLimits) -> None:
        self._columns = columns
        self._names = columns.names()
        self._limits = limits
        self._chain = PrefixChain()
        self._group_tokens: int | None = None
        self._has_request_ids: bool | None = None

    def row(self, value: Value) -> Row:
        prompt_tokens, output_tokens = lengths(
            (self._names["prompt_tokens"], value("prompt_tokens")),
            (self._names["output_tokens"], value("output_tokens")),
            self._limits.tokens,
        )
        return Row(
            arrival_ns=time_ns(self._names["arrival"], value("arrival"), self._columns.time_unit),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            max_tokens=self._max_tokens(value("max_tokens")),
            extras=self._extras(value),
            prefix_ids=self._prefix_ids(value, prompt_tokens),
        )

    def group_tokens(self) -> int | None:
        return self._group_tokens

    def _extras(self, value: Value) -> Extras:
        return Extras(
            request_id=self._request_id(value("request_id")),
            priority=self._priority(value("priority")),
            client=self._text("client", value("client")),
            queue_timeout_ns=self._time("queue_timeout", value),
            timeout_ns=self._time("timeout", value),
            cancel_after_ns=self._time("cancel_after", value),
        )

    def _max_tokens(self, value: object) -> int:
        if _nothing(value):
            return UNKNOWN
        return whole_number(self._names["max_tokens"], value, 1, self._limits.tokens)

    def _priority(self, value: object) -> int | None:
        if _nothing(value):
            return None
        return whole_number(self._names["priority"], value, -_MAX_PRIORITY, _MAX_PRIORITY)

    def _time(self, role: str, value: Value) -> int:
        given = value(role)
        return UNKNOWN if _nothing(given) else time_ns(self._names[role], given, self._columns.time_unit)

    def _text(self, role: str, value: object) -> str | None:
        if _nothing(value):
            return None
        text = str(value) if type(value) is int else value
        if not (isinstance(text, str) and text.isprintable() and len(text) <= _TEXT_CHARACTERS):
            raise RowError(
                f"{named(self._names[role], value)} must be printable text of at most {_TEXT_CHARACTERS} characters"
            )
        return text

    def _request_id(self, value: object) -> str | None:
        request_id = self._text("request_id", value)
        if self._has_request_ids is None:
            self._has_request_ids = request_id is not None
        if self._has_request_ids != (request_id is not None):
            raise RowError(f"{named(self._names['request_id'], value)} must be given in every row or in none")
        return request_id

    def _prefix_ids(self, value: Value, prompt_tokens: int) -> tuple[int, ...]:
        given = value("prefix_ids")
        if _nothing(given):
            return ()
        name = self._names["prefix_ids"]
        ids = prefix_ids(name, given)
        if not ids:
            return ()
        group_tokens = self._group_tokens_of(value("prefix_group_tokens"))
        allowed = -(-prompt_tokens // group_tokens)
        if len(ids) > allowed:
            raise RowError(
                f"{name} has {len(ids)} ids, must have at most {allowed} "
                f"(one per {group_tokens} of {prompt_tokens} tokens)"
            )
        return self._chain.chained(ids)

    def _group_tokens_of(self, value: object) -> int:
        """The one number of the file; the first row with ids settles it."""
        name = self._names["prefix_group_tokens"]
        if self._columns.group_tokens is not None:
            number = self._columns.group_tokens
        elif _nothing(value):
            raise RowError(f"{named(name, value)} must be given beside {self._names['prefix_ids']}")
        else:
            number = whole_number(name, value, 1, self._limits.tokens)
        if self._group_tokens is None:
            self._group_tokens = number
        if number != self._group_tokens:
            raise RowError(f"{named(name, number)} must be the same in every row, is {self._group_tokens} before")
        return number


class GenericCsv:
    """Rows of a generic CSV file."""

    has_header = True

    def __init__(self, first: FirstLine, limits: ReadLimits, columns: GenericColumns) -> None:
        self.arrival_column = columns.names()["arrival"]
        self.from_first = columns.relative_to_first
        self._table = CsvTable(first.keys)
        check = NameCheck(columns)
        check.require(first.keys)
        check.require_declared(first.keys)
        check.refuse_slips(first.keys, first.keys)
        self._read = {role: name for role, name in columns.names().items() if name in first.keys}
        self._positions = dict(zip(self._read, self._table.positions(list(self._read.values())), strict=True))
        self._rows = GenericRows(columns, limits)

    def parse(self, line: str, /) -> Row:
        fields = self._table.fields(line)
        return self._rows.row({role: fields[at] for role, at in self._positions.items()}.get)

    def group_tokens(self) -> int | None:
        return self._rows.group_tokens()

    def finish(self) -> tuple[str, ...]:
        return unread_note(self._table.names, list(self._read.values()))


class GenericJsonl:
    """Rows of a generic JSONL file. Rows may have different keys."""

    has_header = False

    def __init__(self, first: FirstLine, limits: ReadLimits, columns: GenericColumns) -> None:
        self.arrival_column = columns.names()["arrival"]
        self.from_first = columns.relative_to_first
        self._names = columns.names()
        self._limits = limits
        self._check = NameCheck(columns)
        self._check.require(first.keys)
        self._seen: dict[str, None] = {}
        self._see(first.keys)
        self._rows = GenericRows(columns, limits)

    def parse(self, line: str, /) -> Row:
        record = json_object(line, self._limits.json_depth)
        if not record.keys() <= self._seen.keys():
            self._see(list(record))
        return self._rows.row(lambda role: record.get(self._names[role]))

    def group_tokens(self) -> int | None:
        return self._rows.group_tokens()

    def finish(self) -> tuple[str, ...]:
        self._check.require_declared(list(self._seen))
        return unread_note(list(self._seen), list(self._names.values()))

    def _see(self, keys: Sequence[str]) -> None:
        new = [key for key in keys if key not in self._seen]
        if len(self._seen) + len(new) > MAX_COLUMNS:
            raise RowError(f"the file must have at most {MAX_COLUMNS} different keys")
        self._check.refuse_slips(new, keys)
        self._seen.update(dict.fromkeys(new))


def _nothing(value: object) -> bool:
    return value is None or value == ""


def _is_ours(first: FirstLine) -> bool:
    """Whether the names look like our own, slips included."""
    ours = set(GenericColumns().names().values())
    if not ours.isdisjoint(first.keys):
        return True
    try:
        NameCheck(GenericColumns()).refuse_slips(first.keys, first.keys)
    except RowError:
        return True
    return False


register(
    Dialect(
        "generic-csv",
        matches=lambda first: not first.is_json and _is_ours(first),
        start=lambda first, limits: GenericCsv(first, limits, GenericColumns()),
        start_named=GenericCsv,
    )
)
register(
    Dialect(
        "generic-jsonl",
        matches=lambda first: first.is_json and _is_ours(first),
        start=lambda first, limits: GenericJsonl(first, limits, GenericColumns()),
        start_named=GenericJsonl,
    )
)
