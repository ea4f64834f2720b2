"""Chained prefix ids: equal ids mean equal tokens in that group and in all groups before it."""

from __future__ import annotations

from collections.abc import Iterable


class PrefixChain:
    """Gives each (parent group, own id) a dense number, in order of first appearance.

    Ids of a file need not be chained (the same block of text may follow two different beginnings); ours are.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def chained(self, ids: Iterable[int]) -> tuple[int, ...]:
        """The chained ids of one prompt's groups, first group first."""
        known, parent, out = self._known, -1, []
        for own in ids:
            parent = known.setdefault((parent, own), len(known))
            out.append(parent)
        return tuple(out)
