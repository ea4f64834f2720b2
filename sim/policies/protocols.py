"""What a policy must answer. The engine core asks; policies read the engine and change nothing in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sim.core.plan import BatchPlan, Decision, StepDraft
    from sim.core.queue import WaitingQueue
    from sim.core.request import Request
    from sim.kv.store import BlockStore, Hit


class EngineView(Protocol):
    """The engine as a policy may see it: read-only."""

    @property
    def waiting(self) -> WaitingQueue: ...
    @property
    def running(self) -> dict[Request, None]:
        """In list order (of last admission)."""

    @property
    def store(self) -> BlockStore: ...
    @property
    def reserved_blocks(self) -> int:
        """Sum of `reserved_blocks` over running requests."""

    @property
    def block_tokens(self) -> int: ...
    def final_kv_tokens(self, request: Request, /) -> int:
        """The most KV entries the request can ever have: prompt + max_tokens - 1 in most engines."""

    def blocks(self, tokens: int, /) -> int:
        """ceil(tokens / block_tokens)."""


class OrderPolicy(Protocol):
    """In which order waiting requests are looked at."""

    def queue(self) -> WaitingQueue:
        """A new, empty queue that keeps this order."""


class Account(Protocol):
    """An admission policy's memory of one scan of the queue."""

    def decide(self, engine: EngineView, request: Request, hit: Hit, chunk_blocks: int, /) -> Decision:
        """May this request start now? `chunk_blocks`: blocks it would hold after the step, hits included. Pure."""


class AdmissionPolicy(Protocol):
    """Who gets in, by resources alone: how long a request has waited is a matter of order."""

    def reservation(self, engine: EngineView, request: Request, /) -> int:
        """Blocks promised to the request as long as it runs; 0 if it just takes what it needs."""

    def feasible(self, engine: EngineView, request: Request, /) -> Decision:
        """REJECT what could not start in an empty engine either; asked once, at submission."""

    def open(self, engine: EngineView, /) -> Account: ...
    def steady_steps(self, engine: EngineView, plan: BatchPlan, /) -> int:
        """For how many steps of this pure-decode plan its answer to the blocked head cannot change (>= 1)."""


class Meter(Protocol):
    """What is left of a step's work budget. Grants are pure; what is used must be spent."""

    def copy(self) -> Meter:
        """The same as it is now, to go back to."""

    def has_left(self) -> bool:
        """Whether anything at all may still be scheduled."""

    def spend_decodes(self, requests: int, context_tokens: int, /) -> bool:
        """Spend for a group of decodes with this summed context; False, spending nothing, if they do not all fit."""

    def grant(self, want: int, context: int, /, *, decode: bool, admitting: bool) -> int | None:
        """How many of the `want` tokens behind `context` may be computed now; None: stop asking in this scan."""

    def spend(self, tokens: int, context: int, /, *, decode: bool) -> None: ...
    def refund(self, tokens: int, context: int, /, *, decode: bool) -> None:
        """Give back what a victim had been granted in this step."""


class BudgetPolicy(Protocol):
    """How the work of a step is shared out."""

    @property
    def serve(self) -> str:
        """Who is asked first: `list` (whoever stands first in the running list), `decode_first`, or `prefill_first`
        (unfinished prompts, then new ones, then decodes)."""

    @property
    def limit(self) -> float:
        """Tokens or token-work per step, for reports; at least 1 << 60 is unlimited."""

    @property
    def counts_queue(self) -> bool:
        """Whether a grant depends on how many wait, so that a request behind a blocked head may let that head in."""

    def open(self, engine: EngineView, /) -> Meter:
        """A full budget for one step."""

    def steady_steps(self, engine: EngineView, plan: BatchPlan, /) -> int:
        """For how many steps of this pure-decode plan all its decodes keep fitting (>= 1)."""


class PreemptionPolicy(Protocol):
    """Who gives way when a running request's next block is not there."""

    def victim(self, engine: EngineView, request: Request, draft: StepDraft, /) -> Request | None:
        """One of the running requests, maybe `request` itself; None: nobody, and it waits for this step."""
