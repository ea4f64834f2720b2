"""The workload of a recorded scenario, for recorders of the form in tests/golden/FORMAT.md: arrivals and prompts."""

from __future__ import annotations

from typing import Any

from sim.core.request import Request
from sim.kv.content import Content
from workloads.prefix import PrefixChain

NAMESPACE_SPAN = 100_000
"""Token `at` of namespace `ns` has the id ns * 100000 + at."""

PromptSpec = list[list[int]]
"""`[[ns, start, n], ...]`: n tokens of a namespace from start on, one segment after the other."""


class Arrivals:
    """A scenario's requests, handed out as their steps come."""

    def __init__(self, requests: list[dict[str, Any]]) -> None:
        self._coming = sorted(requests, key=lambda row: (row["arrive_step"], row["id"]))

    def __bool__(self) -> bool:
        """Whether anybody is still to come."""
        return bool(self._coming)

    def due(self, step: int) -> list[dict[str, Any]]:
        """Take out the rows that have come by this step, in order of ids."""
        due = [row for row in self._coming if row["arrive_step"] <= step]
        del self._coming[: len(due)]
        return sorted(due, key=lambda row: int(row["id"]))


def prompt_tokens(spec: PromptSpec) -> int:
    """The length of a prompt."""
    return sum(n for _, _, n in spec)


class Prompts:
    """Names the blocks of one scenario's prompts, so that equal names mean equal beginnings.

    A token-granular cache is one whose blocks hold one token. A block that a prompt does not fill has no shared name,
    nor has any behind it: a generated token is unlike everybody else's.
    """

    def __init__(self, block_tokens: int = 1) -> None:
        self._block_tokens = block_tokens
        self._blocks: dict[tuple[int, ...], int] = {}
        self._chain = PrefixChain()

    def content(self, spec: PromptSpec, *, owner: int = 0) -> Content:
        """What a request with this prompt holds. The core numbers owners itself when a request is submitted."""
        size = self._block_tokens
        tokens = [ns * NAMESPACE_SPAN + at for ns, start, n in spec for at in range(start, start + n)]
        blocks = [tuple(tokens[at : at + size]) for at in range(0, len(tokens) - size + 1, size)]
        ids = self._chain.chained(self._blocks.setdefault(block, len(self._blocks)) for block in blocks)
        return Content(ids, shared_blocks=len(ids), owner=owner)

    def request(self, row: dict[str, Any], *, arrival_ns: int = 0) -> Request:
        """A recording's row as the request that a core is given."""
        return Request(
            str(row["id"]),
            prompt_tokens=prompt_tokens(row["prompt"]),
            max_tokens=row["max_new_tokens"],
            arrival_ns=arrival_ns,
            content=self.content(row["prompt"]),
        )
