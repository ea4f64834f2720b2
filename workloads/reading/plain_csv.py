"""The parser of a CSV dialect that says three things: when, how long a prompt, how long an output."""

from __future__ import annotations

from collections.abc import Callable

from workloads.reading.csv_rows import CsvTable, unread_note
from workloads.reading.limits import ReadLimits
from workloads.reading.row import FirstLine, Row
from workloads.reading.values import lengths


class PlainCsvParser:
    """Rows of such a file; other columns are left alone, with a note.

    `columns` are arrival, prompt tokens and output tokens; `arrival_ns` reads the first of them.
    """

    has_header = True

    def __init__(
        self,
        first: FirstLine,
        limits: ReadLimits,
        *,
        columns: tuple[str, str, str],
        arrival_ns: Callable[[str], int],
        from_first: bool,
    ) -> None:
        self.arrival_column, self._prompt, self._output = columns
        self.from_first = from_first
        self._table = CsvTable(first.keys)
        self._arrival_at, self._prompt_at, self._output_at = self._table.positions(columns)
        self._arrival_ns = arrival_ns
        self._max_tokens = limits.tokens
        self._notes = unread_note(first.keys, columns)

    def parse(self, line: str, /) -> Row:
        fields = self._table.fields(line)
        prompt_tokens, output_tokens = lengths(
            (self._prompt, fields[self._prompt_at]), (self._output, fields[self._output_at]), self._max_tokens
        )
        return Row(self._arrival_ns(fields[self._arrival_at]), prompt_tokens, output_tokens)

    def group_tokens(self) -> None:
        return None

    def finish(self) -> tuple[str, ...]:
        return self._notes
