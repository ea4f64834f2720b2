"""What past answers say of the next: windows of output lengths with order statistics, one per client and a shared one.

Nobody's influence on others is unbounded: a client's own history serves that client alone, and in the shared history,
which serves clients too new to have one, no client has more than a given share of the weight.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable
from math import ceil

Rank = Callable[[int], int]
"""Which of n lengths (the k-th smallest, from 1) is the prediction; more than n: none is long enough."""


def quantile_rank(quantile: float) -> Rank:
    """The smallest length that at least this share of n lengths do not exceed."""
    return lambda n: ceil(round(quantile * n, 9))


def conformal_rank(alpha: float) -> Rank:
    """Split conformal prediction: the ceil((n + 1)(1 - alpha))-th, exceeded by the next with probability <= alpha.

    That holds if the next is exchangeable with the n. The scores are lengths less a constant, which is added again
    (Vovk et al. 2005; Papadopoulos et al. 2002).
    """
    return lambda n: ceil(round((n + 1) * (1 - alpha), 9))


class Lengths:
    """The last `window` lengths, sorted."""

    def __init__(self, window: int) -> None:
        self.window = window
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, length: int) -> None:
        if len(self._latest) == self.window:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        self._latest.append(length)
        insort(self._sorted, length)

    def predict(self, rank: Rank, more_than: int) -> int | None:
        """The prediction among the lengths above `more_than`; None if they do not reach so far."""
        first = bisect_right(self._sorted, more_than)
        at = rank(len(self._sorted) - first)
        return self._sorted[first + at - 1] if 0 < at <= len(self._sorted) - first else None


class SharedLengths:
    """The last lengths of all clients, at most `window` of them, and of each at most `share` of the weight.

    A client that has its part already replaces its own oldest length. What is missing for the share to hold, because
    there are too few clients, is filled up with `prior`.
    """

    def __init__(self, window: int, share: float, prior: int) -> None:
        self.window = window
        self.share = share
        self.prior = prior
        self._most_each = max(1, int(share * window))
        self._by_client: dict[str, deque[int]] = {}
        self._order: deque[str] = deque()
        """Whose the lengths are, the oldest first."""
        self._sorted: list[int] = []

    def add(self, client: str, length: int) -> None:
        mine = self._by_client.setdefault(client, deque())
        if len(mine) == self._most_each:
            self._order.remove(client)
            self._forget(client)
        elif len(self._sorted) == self.window:
            self._forget(self._order.popleft())
        mine = self._by_client.setdefault(client, deque())
        mine.append(length)
        self._order.append(client)
        insort(self._sorted, length)

    def _forget(self, client: str) -> None:
        lengths = self._by_client[client]
        del self._sorted[bisect_left(self._sorted, lengths.popleft())]
        if not lengths:
            del self._by_client[client]

    def predict(self, rank: Rank, more_than: int) -> int | None:
        """As `Lengths.predict`."""
        most = max(map(len, self._by_client.values()), default=0)
        missing = max(0, ceil(round(most / self.share, 9)) - len(self._sorted))
        known = self._sorted[bisect_right(self._sorted, more_than) :]
        if self.prior > more_than:
            at = bisect_left(known, self.prior)
            known[at:at] = [self.prior] * missing
        at = rank(len(known))
        return known[at - 1] if 0 < at <= len(known) else None
