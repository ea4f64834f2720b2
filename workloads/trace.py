"""The columnar form of a workload: every reader and generator returns a `Trace`; replays read nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]

UNKNOWN = -1
"""In an integer column: the trace does not say."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that was not used, and why. `where` is `name:line`."""

    where: str
    problem: str


@dataclass(frozen=True, slots=True)
class PrefixIds:
    """What prompts have in common: for each request the chained ids of its prompt's prefix groups.

    Ids are *chained*: equal ids mean equal tokens in that group and in all groups before it, so comparing the last id
    of a run compares the run. `group_tokens` tokens stand behind each id (a trace's hash block, 512 for Mooncake).
    """

    group_tokens: int
    ids: Sequence[tuple[int, ...]]
    """Length (num_requests,); the last group of a prompt may be partly filled."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival. Columns have shape (num_requests,); `None` stands for a column that is absent.

    Times are integer nanoseconds since the trace's first instant. `output_tokens` is the truth (how long the answer
    turned out to be), `max_tokens` is what the client asked for; `UNKNOWN` where the trace does not say.
    """

    name: str
    format: str
    arrival_ns: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    max_tokens: IntArray
    request_ids: Sequence[str] | None = None
    priority: IntArray | None = None
    """Smaller is more important, as in vLLM."""
    clients: Sequence[str] | None = None
    queue_timeout_ns: IntArray | None = None
    """From arrival to first admission; UNKNOWN = none."""
    timeout_ns: IntArray | None = None
    """From arrival to the end; UNKNOWN = none."""
    cancel_after_ns: IntArray | None = None
    """From arrival to the client's cancel; UNKNOWN = never."""
    prefix: PrefixIds | None = None
    sha256: str | None = None
    """Of the file's bytes as stored."""
    bad_rows: tuple[BadRow, ...] = ()
    """Rows left out because they are malformed (`--on-bad-row skip`)."""
    failed_rows: tuple[BadRow, ...] = ()
    """Rows that record a request which failed when the trace was taken: a class of their own, left out."""
    notes: tuple[str, ...] = field(default=())
    """What a report should say about how the trace was read."""

    def __len__(self) -> int:
        return len(self.arrival_ns)
