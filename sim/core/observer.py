"""What an engine core tells whoever keeps the books. The default keeps none."""

from __future__ import annotations

from sim.core.plan import PreemptionMode
from sim.core.request import Request


class Observer:
    """Called by the engine core as things happen; the caller knows the time. Override what you need."""

    def kept_out(self, request: Request) -> None:
        """It waits in front of the engine's own queue."""

    def came_in(self, request: Request) -> None:
        """It has come into the engine's queue from outside."""

    def admitted(self, request: Request) -> None:
        """It has entered the running list (again, if `request.preemptions`), with `request.hit_tokens` cached."""

    def prefilled(self, request: Request) -> None:
        """The forward just committed computed its last known token: one output token came out."""

    def decoded(self, request: Request, start: int, stop: int) -> None:
        """It got one token from each of the cohort's decode steps start .. stop - 1."""

    def preempted(self, request: Request, lost_tokens: int, mode: PreemptionMode, asker: Request | None) -> None:
        """It has given way: `lost_tokens` KV entries are to be computed again (none if they were swapped, or it ends).

        `asker`: for whose next block; None if for the step as a whole, or because the pool has shrunk.
        """

    def swapped_in(self, request: Request, blocks: int) -> None:
        """It runs again, its KV brought back from the host."""

    def ended(self, request: Request, reason: str, detail: str) -> None:
        """Its one terminal event: `request.state` says which, `reason` names the rule, `detail` has the numbers."""
