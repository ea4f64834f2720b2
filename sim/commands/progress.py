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
