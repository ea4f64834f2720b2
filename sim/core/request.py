"""A request as scheduler and policies see it. What it does not hold is the truth: when its answer will end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.core.lifecycle import State

if TYPE_CHECKING:
    from sim.core.cohort import DecodeCohort
    from sim.kv.content import Content


class Request:
    """One request. The engine core is its only writer; policies read.

    Tokens are counted when they are *scheduled*, as vLLM does: `computed_tokens` moves at the end of scheduling, before
    the forward has run, and `output_tokens` counts the tokens of forwards still in flight.

    While a request decodes, its progress is not stored but follows from the step counter of the cohort that it is in
    (`sim.core.cohort`), so that a decode step touches no request. `computed` and `outputs` are then stale: read the
    properties.
    """

    __slots__ = (
        "arrival_ns",
        "base",
        "client",
        "cohort",
        "computed",
        "content",
        "held_blocks",
        "hit_tokens",
        "id",
        "join_step",
        "max_tokens",
        "number",
        "outputs",
        "preemptions",
        "priority",
        "prompt_tokens",
        "reserved_blocks",
        "row",
        "seq",
        "state",
        "table",
    )

    def __init__(
        self,
        id: str,
        *,
        prompt_tokens: int,
        max_tokens: int,
        arrival_ns: int = 0,
        priority: int = 0,
        client: str = "",
        content: Content | None = None,
        row: int = -1,
    ) -> None:
        self.id = id
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        """The most output tokens it may have: what the client asked for, cut at the model's length."""
        self.arrival_ns = arrival_ns
        self.priority = priority
        """Smaller is more important (vLLM)."""
        self.client = client
        self.content = content
        """What its blocks hold, for prefix caches; None where contents do not matter."""
        self.row = row
        """Its place in the workload, for whoever keeps columns."""

        self.state = State.QUEUED
        self.number = 0
        """Order of submission to its engine, from 1."""
        self.seq = 0
        """Its place in the running list: running requests are in order of `seq`, which most engines give at (last)
        admission."""
        self.computed = 0
        self.outputs = 0
        self.held_blocks = 0
        """Blocks held while it is not decoding; in the cohort they follow from `computed_tokens`."""
        self.reserved_blocks = 0
        """Blocks promised to it in all, by a reserving admission policy."""
        self.hit_tokens = 0
        """Prompt tokens that its last admission found cached."""
        self.preemptions = 0
        self.table: list[object] = []
        """What its block store keeps for it; the store's business alone."""

        self.cohort: DecodeCohort | None = None
        self.base = 0
        self.join_step = 0
        """In the cohort: computed_tokens = base + step, and one token came out per step since `join_step`."""

    @property
    def computed_tokens(self) -> int:
        """Tokens whose KV exists, or will when the forwards in flight have run."""
        return self.computed if self.cohort is None else self.base + self.cohort.step

    @property
    def output_tokens(self) -> int:
        """Tokens emitted, those of forwards in flight included."""
        return self.outputs if self.cohort is None else self.outputs + self.cohort.step - self.join_step

    @property
    def known_tokens(self) -> int:
        """Prompt and output so far: what must be computed before the next token comes out."""
        return self.prompt_tokens + self.output_tokens

    @property
    def uncomputed_tokens(self) -> int:
        """Known tokens without KV: 1 for a decode (0 where prefills emit nothing), more for a prefill or recompute."""
        return self.known_tokens - self.computed_tokens

    @property
    def decoding(self) -> bool:
        return self.cohort is not None

    def __repr__(self) -> str:
        return (
            f"Request({self.id!r}, {self.state.value}, prompt {self.prompt_tokens}, out {self.output_tokens}, "
            f"computed {self.computed_tokens})"
        )
