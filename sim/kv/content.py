"""What the blocks of a request hold, as far as anybody can know: shared ids from the trace, then private ones."""

from __future__ import annotations

PRIVATE_SPAN = 1 << 24
"""More blocks than one request can have."""


class Content:
    """The chained identity of a request's blocks: equal keys mean equal tokens in a block and in all before it.

    The first `shared_blocks` blocks are named by `ids`, each id standing for `blocks_per_id` blocks (a trace's hash id
    h for G tokens stands for G / block_tokens engine blocks keyed (h, j)). Blocks behind them are this request's own:
    no other request can have them, but it may hit them itself after a preemption.
    """

    __slots__ = ("blocks_per_id", "ids", "owner", "shared_blocks")

    def __init__(self, ids: tuple[int, ...], *, shared_blocks: int, owner: int, blocks_per_id: int = 1) -> None:
        self.ids = ids
        self.blocks_per_id = blocks_per_id
        self.shared_blocks = shared_blocks
        self.owner = owner
        """A number of its request, unique within the engine."""

    def key(self, block: int) -> int:
        """The name of one block. Shared names are >= 0, private ones negative."""
        if block < self.shared_blocks:
            return self.ids[block // self.blocks_per_id] * self.blocks_per_id + block % self.blocks_per_id
        return -1 - self.owner * PRIVATE_SPAN - block

    def in_common(self, other: Content, start: int, most: int) -> int:
        """Blocks from `start` on that both have, of which the first is known to be one; looks at `most` (>= 1).

        Chained keys agree up to a point and never again: bisect for it.
        """
        if self is other or self.key(start + most - 1) == other.key(start + most - 1):
            return most
        low, high = 1, most - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.key(start + middle - 1) == other.key(start + middle - 1):
                low = middle
            else:
                high = middle - 1
        return low
