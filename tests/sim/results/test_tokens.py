"""Token times from ranges of steps are those of every token written out."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.results.columns import NEVER, EngineLog, RequestColumns
from sim.results.measure import Measured
from sim.results.run import RunResult
from sim.results.tokens import event_gaps, events_in_time, expand, spans, token_times

ROWS = 4


@st.composite
def logs(draw: st.DrawFn, begin_ns: int = 0) -> EngineLog:
    """Random books: each request gets its tokens from prefills and ranges of steps, in order of time."""
    log = EngineLog(0, RequestColumns(ROWS))
    ends = np.cumsum(draw(st.lists(st.integers(2, 50), min_size=1, max_size=30))) * 2 + begin_ns
    log.decode_ends_ns.extend(ends.tolist())
    pieces = []
    for row in range(ROWS):
        cuts = sorted(set(draw(st.lists(st.integers(0, len(ends)), max_size=6))))
        for start, stop in zip(cuts[::2], cuts[1::2], strict=False):
            if draw(st.booleans()):
                pieces.append((int(ends[start]) - 1, row, -1, int(ends[start]) - 1))
            pieces.append((int(ends[start]), row, start, stop))
    for _, row, start, stop in sorted(pieces):
        log.segments.add(row, start, stop)
    return log


def tokens_of(log: EngineLog, row: int) -> list[int]:
    """The slow way."""
    out: list[int] = []
    for each, start, stop in zip(log.segments.row, log.segments.start, log.segments.stop, strict=True):
        if each == row:
            out += [stop] if start == -1 else [log.decode_ends_ns[step] for step in range(start, stop)]
    return out


@given(st.lists(logs(), min_size=1, max_size=1) | st.tuples(logs(begin_ns=10**6), logs()))
def test_times_per_request_are_those_of_its_tokens_one_by_one(books: Sequence[EngineLog]) -> None:
    """Also of requests that have moved from one engine to another."""
    times = token_times(spans(books), books, ROWS)
    for row in range(ROWS):
        tokens = sorted(token for log in books for token in tokens_of(log, row))
        assert times.events[row] == len(tokens)
        assert times.first_ns[row] == (tokens[0] if tokens else NEVER)
        assert times.last_ns[row] == (tokens[-1] if tokens else NEVER)
        assert times.max_gap_ns[row] == max(np.diff(tokens), default=NEVER)


@given(logs(), st.lists(st.booleans(), min_size=ROWS, max_size=ROWS))
def test_pooled_gaps_are_those_of_the_tokens_one_by_one(log: EngineLog, wanted: list[bool]) -> None:
    table = spans([log])
    gaps = event_gaps(table.pick(np.array(wanted)[table.row]), [log])
    expected = [gap for row in range(ROWS) if wanted[row] for gap in np.diff(tokens_of(log, row)).tolist()]
    assert sorted(np.repeat(gaps.gap_ns, gaps.count).tolist()) == sorted(expected)
    assert (gaps.count > 0).all()


@given(logs())
def test_events_in_time_are_all_tokens(log: EngineLog) -> None:
    time_ns, events = events_in_time(spans([log]), [log])
    assert sorted(np.repeat(time_ns, events)) == sorted(token for row in range(ROWS) for token in tokens_of(log, row))


@given(logs())
def test_expanding_a_request_gives_its_tokens(log: EngineLog) -> None:
    for row in range(ROWS):
        assert expand(log, row).tolist() == tokens_of(log, row)


def test_a_token_in_flight_when_the_run_stopped_did_not_come_out() -> None:
    log = EngineLog(0, RequestColumns(1))
    log.decode_ends_ns.extend([10, 20])
    log.segments.add(0, 0, 5)
    log.segments.add(0, 7, 9)
    assert expand(log, 0).tolist() == [10, 20]
    assert token_times(spans([log]), [log], 1).events.tolist() == [2]


def test_no_books_no_tokens() -> None:
    log = EngineLog(0, RequestColumns(2))
    table = spans([log])
    assert token_times(table, [log], 2).events.tolist() == [0, 0]
    assert len(event_gaps(table, [log]).count) == 0


def test_gaps_of_a_request_add_up_to_e2e_minus_ttft(busy: RunResult) -> None:
    measured = Measured(busy)
    for row in np.flatnonzero(measured.served):
        tokens = expand(busy.logs[0], int(row))
        assert len(tokens) == measured.output_tokens[row]
        assert np.diff(tokens).sum() == measured.e2e_ns[row] - measured.ttft_ns[row]
    total = (measured.gaps.gap_ns * measured.gaps.count).sum()
    assert total == (measured.e2e_ns - measured.ttft_ns)[measured.served].sum()
    assert measured.gaps.count.sum() == (measured.output_tokens - 1)[measured.served].sum()


def test_a_hundred_thousand_requests_with_twenty_million_tokens_take_less_than_a_second() -> None:
    rows, rng = 100_000, np.random.default_rng(0)
    log = EngineLog(0, RequestColumns(rows))
    steps = 29 * rows
    log.decode_ends_ns.extend(np.cumsum(rng.integers(8_000_000, 12_000_000, steps)).tolist())
    start = np.sort(rng.integers(0, steps - 500, rows))
    stop = start + rng.integers(20, 400, rows)
    for row, (first, last) in enumerate(zip(start.tolist(), stop.tolist(), strict=True)):
        log.segments.add(row, -1, log.decode_ends_ns[first] - 1)
        log.segments.add(row, first, last)
    began = time.process_time()
    table = spans([log])
    token_times(table, [log], rows)
    gaps = event_gaps(table, [log])
    assert time.process_time() - began < 1
    assert int(gaps.count.sum()) == int((stop - start).sum()) > 20_000_000
