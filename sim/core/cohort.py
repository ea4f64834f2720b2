"""The requests that only decode, kept so that a step of all of them costs the same as a step of one.

Each step moves every member on by one token. So a member stores its position relative to the step counter, block needs
come from a histogram of positions modulo the block size, and the summed context from one sum. Nothing here is touched
per request and step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sim.core.request import Request

FOREVER = 1 << 60
"""More steps than any run has."""


def no_run(request: Request, start: int, stop: int) -> None:
    """The default listener: nobody wants to know when tokens came out."""


class DecodeCohort:
    """Members advance together: `step` counts the cohort's steps that have been scheduled.

    The caller advances `step` by itself (`cohort.step += k`); everything else follows. Members have
    `computed_tokens = base + step` and hold `ceil(computed_tokens / block_tokens)` blocks.
    """

    __slots__ = ("_base_sum", "_phases", "block_tokens", "on_run", "size", "step")

    def __init__(self, block_tokens: int, on_run: Callable[[Request, int, int], None] = no_run) -> None:
        self.block_tokens = block_tokens
        self.step = 0
        self.size = 0
        self.on_run = on_run
        """Called with (request, start, stop) when a member's unbroken run of cohort steps is over."""
        self._phases = [0] * block_tokens
        """Members by base modulo block_tokens: those at -step mod block_tokens need a block in the next step."""
        self._base_sum = 0

    # -- members

    def join(self, request: Request) -> None:
        """Take in a request whose known tokens all have KV but the newest."""
        request.cohort = self
        request.base = request.computed - self.step
        request.join_step = self.step
        self._remember(request)

    def leave(self, request: Request, *, last_step: int) -> None:
        """Let a member go: its progress is stored in it again. Tokens after `last_step` never come out."""
        stop = max(request.join_step, min(self.step, last_step))
        request.computed = request.base + self.step
        request.outputs += stop - request.join_step
        self._forget(request)
        request.cohort = None
        self.on_run(request, request.join_step, stop)

    def miss(self, request: Request) -> None:
        """The last step went by without this member (its work budget was gone): it is one step behind now."""
        stop = self.step - 1
        self._forget(request)
        self.on_run(request, request.join_step, stop)
        request.outputs += stop - request.join_step
        request.join_step = self.step
        request.base -= 1
        self._remember(request)

    def _remember(self, request: Request) -> None:
        self._phases[request.base % self.block_tokens] += 1
        self._base_sum += request.base
        self.size += 1

    def _forget(self, request: Request) -> None:
        self._phases[request.base % self.block_tokens] -= 1
        self._base_sum -= request.base
        self.size -= 1

    # -- sums over members

    @property
    def context_tokens(self) -> int:
        """Sum of the members' KV entries before the next step."""
        return self._base_sum + self.size * self.step

    def blocks_for(self, steps: int) -> int:
        """Blocks that the next `steps` steps take from the pool."""
        rounds, rest = divmod(steps, self.block_tokens)
        first = -self.step
        return rounds * self.size + sum(self._phases[(first - i) % self.block_tokens] for i in range(rest))

    def next_blocks(self) -> int:
        """Blocks that the next step takes: `blocks_for(1)`, quickly."""
        return self._phases[-self.step % self.block_tokens]

    def affordable_steps(self, free_blocks: int, limit: int) -> int:
        """How many of the next `limit` steps `free_blocks` pay for."""
        if (limit // self.block_tokens + 1) * self.size <= free_blocks:
            return limit
        rounds = free_blocks // self.size
        steps, free = rounds * self.block_tokens, free_blocks - rounds * self.size
        while steps < limit:
            free -= self._phases[(-self.step - steps) % self.block_tokens]
            if free < 0:
                return steps
            steps += 1
        return limit

    def check_invariants(self, members: Iterable[Request]) -> None:
        """Recompute every sum from the members; raises AssertionError on our own bugs."""
        members = list(members)
        assert all(request.cohort is self for request in members)
        assert self.size == len(members) == sum(self._phases)
        assert self._base_sum == sum(request.base for request in members)
