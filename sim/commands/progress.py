"""What a long run says on stderr while it runs, and how fast it was. Never on stdout: that is the result."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.results.run import RunResult


class Progress:
    """One line, rewritten in place, only on a terminal."""

    SECONDS_BETWEEN = 0.2

    def __init__(self) -> None:
        self._shown = False
        self._started_s = self._last_s = time.monotonic()
        self.wall_s = 0.0

    def __enter__(self) -> Progress:
        self._started_s = self._last_s = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s = time.monotonic() - self._started_s
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr)

    def update(self, now_ns: int, arrived: int) -> None:
        """The driver's progress callback."""
        now_s = time.monotonic()
        if not sys.stderr.isatty() or now_s - self._last_s < self.SECONDS_BETWEEN:
            return
        self._last_s, self._shown = now_s, True
        print(f"\r\x1b[Ksimulated {now_ns / 1e9:,.0f} s, {arrived:,} arrived", end="", file=sys.stderr, flush=True)

    def summary(self, result: RunResult) -> None:
        requests = sum(engine >= 0 for engine in result.requests.engine)
        rate = requests / self.wall_s if self.wall_s else 0.0
        print(f"replayed {requests:,} requests in {self.wall_s:.2f} s: {rate:,.0f} requests/s", file=sys.stderr)


class RunsDone:
    """`7 of 15 runs`, rewritten in place, only on a terminal; at the end how long it took."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0
        self._started_s = time.monotonic()

    def __enter__(self) -> RunsDone:
        self._show()
        return self

    def __exit__(self, *_: object) -> None:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr)
        print(f"{self._done:,} of {self._total:,} runs in {time.monotonic() - self._started_s:.1f} s", file=sys.stderr)

    def update(self, done: int) -> None:
        self._done = done
        self._show()

    def _show(self) -> None:
        if not sys.stderr.isatty():
            return
        spent_s = time.monotonic() - self._started_s
        left = f", {spent_s / self._done * (self._total - self._done):.0f} s left" if self._done else ""
        print(f"\r\x1b[K{self._done:,} of {self._total:,} runs{left}", end="", file=sys.stderr, flush=True)
