"""One file to one `Trace`: which dialect, then row by row."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Literal

from workloads.reading.collect import Collector, ReadRules
from workloads.reading.errors import RowError, TraceError, listed, shown
from workloads.reading.generic_columns import GenericColumns
from workloads.reading.limits import ReadLimits
from workloads.reading.lines import Lines, decoded, open_lines
from workloads.reading.registry import dialect, dialects, format_names
from workloads.reading.row import Dialect, FirstLine, Parser
from workloads.trace import Trace

OnBadRow = Literal["error", "skip"]


def read_trace(
    path: str | PathLike[str],
    *,
    format: str | None = None,
    columns: GenericColumns | None = None,
    on_bad_row: OnBadRow = "error",
    sort: bool = False,
    limits: ReadLimits | None = None,
) -> Trace:
    """The requests in this file, in order of arrival.

    `format` is one of `format_names()`; without it the first line decides (never the file's name). `columns` names
    the columns of a generic file. A malformed row is a `TraceError`, or left out and kept in `bad_rows`; a row that
    records a failed request is always left out, into `failed_rows`. Rows out of order are a `TraceError`, or sorted
    (stably). A missing file is an `OSError`.
    """
    if on_bad_row not in ("error", "skip"):
        raise ValueError(f"on_bad_row must be 'error' or 'skip', got {on_bad_row!r}")
    rules = ReadRules(skip_bad_rows=on_bad_row == "skip", sort=sort, limits=limits or ReadLimits())
    chosen = None if format is None else dialect(format)
    with open_lines(Path(path), rules.limits) as lines:
        return _read(lines, chosen, columns, rules)


def _read(lines: Lines, chosen: Dialect | None, columns: GenericColumns | None, rules: ReadRules) -> Trace:
    rows = iter(lines)
    number, line = next(rows, (0, b""))
    if number == 0:
        raise TraceError(lines.name, "the file is empty")
    try:
        first = FirstLine.of(decoded(line), rules.limits)
        chosen = chosen or _detected(first, columns)
        parser = _parser(chosen, first, columns, rules.limits)
    except RowError as problem:
        raise TraceError(f"{lines.name}:{number}", str(problem)) from None
    collector = Collector(lines.name, parser, rules)
    _collect(rows if parser.has_header else chain([(number, line)], rows), parser, collector, rules.limits)
    try:
        return collector.trace(chosen.name, lines.sha256())
    except RowError as problem:
        raise TraceError(lines.name, str(problem)) from None


def _collect(rows: Iterator[tuple[int, bytes]], parser: Parser, collector: Collector, limits: ReadLimits) -> None:
    left, parse, add = limits.rows, parser.parse, collector.add
    for number, line in rows:
        try:
            left -= 1
            if left < 0:
                raise TraceError(f"{collector.name}:{number}", f"at most {limits.rows} rows may be read (rows)")
            add(parse(decoded(line)), number)
        except RowError as problem:
            collector.leave_out(problem, number)


def _detected(first: FirstLine, columns: GenericColumns | None) -> Dialect:
    if columns is not None:
        return dialect("generic-jsonl" if first.is_json else "generic-csv")
    fitting = [known for known in dialects() if known.matches(first)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise RowError(f"fits several formats, say which: {', '.join(known.name for known in fitting)}")
    what = f"has the keys {listed(first.keys)}" if first.is_json else f"is {shown(first.text)}"
    raise RowError(
        f"the first line must fit a known format ({', '.join(format_names())}) or have its columns named; it {what}"
    )


def _parser(chosen: Dialect, first: FirstLine, columns: GenericColumns | None, limits: ReadLimits) -> Parser:
    if columns is None:
        return chosen.start(first, limits)
    if chosen.start_named is None:
        raise ValueError(f"columns can be named for generic formats only, not for {chosen.name!r}")
    return chosen.start_named(first, limits, columns)
