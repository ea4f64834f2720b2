"""Rows to columns: order, double ids, what is left out, and the finished `Trace`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from workloads.reading.errors import FailedRow, RowError, TraceError, shown
from workloads.reading.limits import ReadLimits
from workloads.reading.row import Extras, Parser, Row
from workloads.select import take
from workloads.trace import UNKNOWN, BadRow, IntArray, PrefixIds, Trace


@dataclass(frozen=True, slots=True)
class ReadRules:
    """What to do with rows that are malformed or out of order."""

    skip_bad_rows: bool
    sort: bool
    limits: ReadLimits


class Collector:
    """The rows read so far, as columns, and those left out."""

    def __init__(self, name: str, parser: Parser, rules: ReadRules) -> None:
        self.name = name
        self._parser = parser
        self._rules = rules
        self._arrivals, self._prompts = array("q"), array("q")
        self._outputs, self._max_tokens = array("q"), array("q")
        self._prefix_ids: list[tuple[int, ...]] = []
        self._extras: list[Extras] = []
        self._lines_of_ids: dict[str, int] = {}
        self._latest_ns = 0
        self._num_late = 0
        self._bad: list[BadRow] = []
        self._failed: list[BadRow] = []

    def add(self, row: Row, number: int) -> None:
        """Takes the row at this line. `RowError` where its id was there before; the row is not taken then."""
        if row.extras is not None:
            self._check_id(row.extras.request_id, number)
            self._extras.append(row.extras)
        if row.arrival_ns < self._latest_ns:
            self._late(row, number)
        else:
            self._latest_ns = row.arrival_ns
        self._arrivals.append(row.arrival_ns)
        self._prompts.append(row.prompt_tokens)
        self._outputs.append(row.output_tokens)
        self._max_tokens.append(row.max_tokens)
        if row.prefix_ids is not None:
            self._prefix_ids.append(row.prefix_ids)

    def leave_out(self, problem: RowError, number: int) -> None:
        """Notes a row that cannot be used, or raises `TraceError` where that is the rule."""
        where = f"{self.name}:{number}"
        failed = isinstance(problem, FailedRow)
        if not (failed or self._rules.skip_bad_rows):
            raise TraceError(where, str(problem))
        (self._failed if failed else self._bad).append(BadRow(where, str(problem)))
        allowed = self._rules.limits.left_out_rows
        if len(self._failed) + len(self._bad) > allowed:
            raise TraceError(where, f"at most {allowed} rows may be left out (left_out_rows)")

    def trace(self, format_name: str, sha256: str) -> Trace:
        """The finished trace, in order of arrival; `TraceError` where no row can be used."""
        self._check_any()
        arrivals = np.array(self._arrivals, dtype=np.int64)
        trace = Trace(
            name=self.name,
            format=format_name,
            arrival_ns=arrivals - arrivals.min() if self._parser.from_first else arrivals,
            prompt_tokens=np.array(self._prompts, dtype=np.int64),
            output_tokens=np.array(self._outputs, dtype=np.int64),
            max_tokens=np.array(self._max_tokens, dtype=np.int64),
            prefix=self._prefix(),
            sha256=sha256,
            bad_rows=tuple(self._bad),
            failed_rows=tuple(self._failed),
            notes=self._parser.finish(),
        )
        if self._extras:
            trace = with_extras(trace, self._extras)
        return self._sorted(trace) if self._num_late else trace

    def _check_id(self, request_id: str | None, number: int) -> None:
        if request_id is None:
            return
        first = self._lines_of_ids.setdefault(request_id, number)
        if first != number:
            raise RowError(f"request id {shown(request_id)} must be unique, is also in line {first}")

    def _late(self, row: Row, number: int) -> None:
        if not self._rules.sort:
            back_s = (self._latest_ns - row.arrival_ns) / 1e9
            raise TraceError(
                f"{self.name}:{number}",
                f"{self._parser.arrival_column} goes back by {back_s:g} s, must be in order of arrival (or sorted)",
            )
        self._num_late += 1

    def _check_any(self) -> None:
        if self._arrivals:
            return
        left_out = sorted([*self._bad, *self._failed], key=lambda row: int(row.where.rpartition(":")[2]))
        if not left_out:
            raise TraceError(self.name, "has a header but no rows")
        first = left_out[0]
        raise TraceError(
            self.name, f"none of its {len(left_out)} rows can be used; first {first.where}: {first.problem}"
        )

    def _prefix(self) -> PrefixIds | None:
        group_tokens = self._parser.group_tokens()
        return None if group_tokens is None else PrefixIds(group_tokens, self._prefix_ids)

    def _sorted(self, trace: Trace) -> Trace:
        ordered = take(trace, np.argsort(trace.arrival_ns, kind="stable"))
        return replace(ordered, notes=(*ordered.notes, f"sorted: {self._num_late} rows were out of order"))


def with_extras(trace: Trace, extras: Sequence[Extras]) -> Trace:
    """The trace with these columns; a column that no row speaks of stays absent."""
    return replace(
        trace,
        request_ids=_texts([row.request_id for row in extras]),
        priority=_numbers([row.priority for row in extras]),
        clients=_texts([row.client for row in extras]),
        queue_timeout_ns=_times([row.queue_timeout_ns for row in extras]),
        timeout_ns=_times([row.timeout_ns for row in extras]),
        cancel_after_ns=_times([row.cancel_after_ns for row in extras]),
    )


def _texts(values: list[str | None]) -> list[str] | None:
    return None if all(value is None for value in values) else [value or "" for value in values]


def _numbers(values: list[int | None]) -> IntArray | None:
    if all(value is None for value in values):
        return None
    return np.array([value or 0 for value in values], dtype=np.int64)


def _times(values: list[int]) -> IntArray | None:
    return None if all(value == UNKNOWN for value in values) else np.array(values, dtype=np.int64)
