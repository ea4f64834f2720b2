"""One request's story: what happened to it and why, from the tables of a run, in memory or in a folder."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.core.plan import Blocker, PreemptionMode
from sim.results.events import Happening, event_table
from sim.results.measure import Measured
from sim.results.run import RunResult
from sim.results.tables import request_table
from sim.results.telling import Piece, Telling, Where

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("events.parquet", "requests.parquet", "metrics.json")
MOST_PIECES = 12
"""Of one wait: a longer list of reasons is not read."""
Record = Mapping[str, Any]
"""A row of the events' table; None where it has no value."""

WAITS_FROM = {
    Happening.ARRIVED: Where.QUEUE,
    Happening.KEPT_OUT: Where.OUTSIDE,
    Happening.CAME_IN: Where.QUEUE,
    Happening.PREEMPTED: Where.REQUEUE,
}
"""Where a request waits after an event; after others it runs, or is over."""


class NoSuchRequest(ValueError):
    """No request has this id; the text names some that are much alike."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened to the request, or that it began to wait for."""

    time_ns: int
    what: str
    """A `Happening`'s value, or `waits`."""
    text: str


@dataclass(frozen=True, slots=True)
class Story:
    request_id: str
    end: str
    """The state in which it ended, or was when the run was over."""
    prompt_tokens: int
    output_tokens: int
    moments: tuple[Moment, ...]
    queue_ns: Mapping[str, int]
    """Waited before the first admission (or in vain), by what blocked the queue; the values add up."""
    requeue_ns: Mapping[str, int]
    """Waited after preemptions, the same way."""
    preemptions: int
    lost_tokens: int


@dataclass(frozen=True)
class Books:
    """What a story is told from."""

    events: pd.DataFrame
    requests: pd.DataFrame
    """Index: request_id."""
    engines: Sequence[Record]
    """Facts of each: total_blocks, block_tokens, max_running."""

    @classmethod
    def of_run(cls, run: RunResult | Measured) -> Books:
        measured = run if isinstance(run, Measured) else Measured(run)
        return cls(event_table(measured), request_table(measured), [asdict(one) for one in measured.result.engines])

    @classmethod
    def of_folder(cls, folder: Path) -> Books:
        """From what `tokenwork replay --out` has written. Raises OSError."""
        import pandas as pd

        for name in TABLES:
            (folder / name).stat()
        requests = pd.read_parquet(folder / "requests.parquet").set_index("request_id")
        engines = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["engines"]
        return cls(pd.read_parquet(folder / "events.parquet"), requests, engines)


def story(run: RunResult | Measured | Path | Books, request_id: str) -> Story:
    """The story of a request. Raises NoSuchRequest, and OSError where a folder lacks the tables."""
    if isinstance(run, Path):
        books = Books.of_folder(run)
    else:
        books = run if isinstance(run, Books) else Books.of_run(run)
    if request_id not in books.requests.index:
        raise NoSuchRequest(_unknown(request_id, list(books.requests.index)))
    facts: Record = books.requests.loc[request_id].to_dict()  # type: ignore[assignment]
    prompts: dict[str, int] = books.requests["prompt_tokens"].to_dict()  # type: ignore[assignment]
    own, heads, engine = _of_request(books, request_id)
    telling = Telling(request_id, engine, prompts)
    moments, pieces = _walk(own, heads, telling, until_ns=int(books.events["time_ns"].max()) if own else 0)
    gave_way = [each for each in own if each["event"] == Happening.PREEMPTED.value]
    return Story(
        request_id=request_id,
        end=str(facts["end"]),
        prompt_tokens=int(facts["prompt_tokens"]),
        output_tokens=0 if facts["end"] == "not_offered" else int(facts["output_tokens"]),
        moments=tuple(moments),
        queue_ns=_by_blocker(piece for piece in pieces if piece.where in (Where.QUEUE, Where.OUTSIDE)),
        requeue_ns=_by_blocker(piece for piece in pieces if piece.where in (Where.REQUEUE, Where.HOST)),
        preemptions=len(gave_way),
        lost_tokens=sum(each["tokens"] for each in gave_way),
    )


def _unknown(request_id: str, ids: list[str]) -> str:
    close = get_close_matches(request_id, ids, 3) or ids[:1]
    hint = f"; there is {', '.join(map(repr, close))}" if close else ""
    return f"no request has the id {request_id!r}{hint}"


def _of_request(books: Books, request_id: str) -> tuple[list[Record], list[Record], Record]:
    """Its own events, the blocked heads of its engine's queue, and facts of the engine."""
    events = books.events
    blocked = events["event"] == Happening.BLOCKED.value
    own = _records(events[~blocked & (events["request_id"] == request_id)])
    engine = own[0]["engine"] if own else 0
    return own, _records(events[blocked & (events["engine"] == engine)]), books.engines[engine]


def _records(rows: pd.DataFrame) -> list[Record]:
    """Rows as plain data: a Parquet file gives counts back as floats."""
    plain = rows.astype(object)
    return [
        {str(name): int(value) if isinstance(value, float) else value for name, value in row.items()}
        for row in plain.where(plain.notna(), None).to_dict("records")
    ]


def _walk(
    own: Sequence[Record], heads: Sequence[Record], telling: Telling, *, until_ns: int
) -> tuple[list[Moment], list[Piece]]:
    """Through its events: what happened, and what was waited for in between."""
    moments: list[Moment] = []
    pieces: list[Piece] = []
    where, since_ns = None, 0
    for event in (*own, None):
        now_ns = until_ns if event is None else event["time_ns"]
        happening = None if event is None else Happening(event["event"])
        if happening is Happening.FIRST_TOKEN and event is not None:  # of a forward in flight: it may wait already
            moments.append(Moment(now_ns, happening.value, telling.of(event)))
            continue
        if where is not None:
            waited = list(_pieces(where, since_ns, now_ns, heads))
            pieces += waited
            moments += [
                Moment(piece.from_ns, "waits", telling.waiting(piece)) for piece in _merged(waited, telling.request_id)
            ]
        if event is None or happening is None:
            break
        moments.append(Moment(now_ns, happening.value, telling.of(event)))
        where, since_ns = WAITS_FROM.get(happening), now_ns
        if where is Where.REQUEUE and event["what"] == PreemptionMode.SWAP.value:
            where = Where.HOST
    return moments, pieces


def _pieces(where: Where, from_ns: int, until_ns: int, heads: Sequence[Record]) -> Iterator[Piece]:
    """A wait, cut where another reason holds from."""
    if where in (Where.HOST, Where.OUTSIDE):
        if until_ns > from_ns:
            blocker = Blocker.BLOCKS if where is Where.HOST else Blocker.POLICY
            yield Piece(where, from_ns, until_ns, blocker, (), (), None, None)
        return
    at = bisect_right(heads, from_ns, key=lambda head: head["time_ns"]) - 1
    while from_ns < until_ns:
        head = heads[at] if at >= 0 else None
        at += 1
        end_ns = min(until_ns, heads[at]["time_ns"]) if at < len(heads) else until_ns
        yield _piece(where, from_ns, end_ns, head)
        from_ns = end_ns


def _piece(where: Where, from_ns: int, until_ns: int, head: Record | None) -> Piece:
    if head is None or head["what"] == Blocker.NOTHING.value:
        return Piece(where, from_ns, until_ns, Blocker.STEP, (), (), None, None)
    at = () if head["request_id"] is None else (head["request_id"],)
    lacking = Blocker(head["what"])
    return Piece(where, from_ns, until_ns, lacking, (head["reason"],), at, head["blocks"], head["num_requests"])


def _merged(pieces: Sequence[Piece], own_id: str) -> list[Piece]:
    """Neighbours that lack the same become one, whoever stood at the head; very many become one altogether."""

    def alike(piece: Piece) -> tuple[object, ...]:
        return piece.blocker, piece.heads == (own_id,)

    merged: list[Piece] = []
    for piece in pieces:
        if merged and alike(merged[-1]) == alike(piece):
            merged[-1] = _joined(merged[-1], piece)
        else:
            merged.append(piece)
    return merged if len(merged) <= MOST_PIECES else [reduce(_joined, merged)]


def _joined(one: Piece, other: Piece) -> Piece:
    reasons = tuple(dict.fromkeys((*one.reasons, *other.reasons)))
    heads = tuple(dict.fromkeys((*one.heads, *other.heads)))
    return replace(one, until_ns=other.until_ns, reasons=reasons, heads=heads)


def _by_blocker(pieces: Iterator[Piece]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for piece in pieces:
        name = piece.blocker.value
        sums[name] = sums.get(name, 0) + piece.until_ns - piece.from_ns
    return sums
