"""What a policy must answer, with defaults for what most need not care about: subclass and override.

The engine core asks; policies read the engine and change nothing in it. What a policy remembers changes only in
`observe`; what accumulates within one scan of the queue (an account, a meter) is opened for that scan. Every engine
works on its own copy of its policies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from sim.core.cohort import FOREVER
from sim.core.plan import ADMIT, PreemptionMode

if TYPE_CHECKING:
    from sim.core.cohort import DecodeCohort
    from sim.core.events import PolicyEvent
    from sim.core.plan import BatchPlan, Decision, StepDraft
    from sim.core.queue import WaitingQueue
    from sim.core.request import Request
    from sim.kv.host import HostPool
    from sim.kv.store import BlockStore, Hit


class EngineView(Protocol):
    """The engine as a policy may see it: read-only."""

    @property
    def now_ns(self) -> int:
        """When the step is being planned."""

    @property
    def waiting(self) -> WaitingQueue: ...
    @property
    def running(self) -> dict[Request, None]:
        """In list order."""

    @property
    def prefilling(self) -> dict[Request, None]:
        """Of the running, those whose prompt is not computed yet, in list order."""

    @property
    def cohort(self) -> DecodeCohort:
        """The decoding requests as a group: `size`, `context_tokens`, `next_blocks()`."""

    @property
    def store(self) -> BlockStore: ...
    @property
    def pool_blocks(self) -> int:
        """What the pool has at its best (`store.total_blocks`: now); whoever needs more can never run."""

    @property
    def host(self) -> HostPool: ...
    @property
    def free_slots(self) -> int:
        """How many more requests may run, as far as sequence slots go."""

    @property
    def reserved_blocks(self) -> int:
        """Sum of `reserved_blocks` over running requests."""

    @property
    def promised_blocks(self) -> int:
        """Granted earlier in this step's scan and not taken yet; `store.free_blocks` is without them."""

    @property
    def block_tokens(self) -> int: ...
    def final_kv_tokens(self, request: Request, /) -> int:
        """The most KV entries the request can ever have: prompt + max_tokens - 1 in most engines."""

    def blocks(self, tokens: int, /) -> int:
        """ceil(tokens / block_tokens)."""

    def held_blocks(self, request: Request, /) -> int:
        """Blocks that a running request holds, shared ones included."""


class Policy:
    """What all kinds have in common."""

    prevents_starvation: bool = False
    """Its claim that nobody waits for ever, whoever arrives meanwhile (checked by `sim.testing`)."""

    def observe(self, event: PolicyEvent, /) -> None:
        """Something has happened. The only place where a policy's own state may change."""

    def notes(self) -> list[str]:
        """After a run: what a reader of its figures must know, a line each."""
        return []


class OrderPolicy(Policy, ABC):
    """In which order waiting requests are looked at."""

    sorts: bool = False
    """Whether `arranged` is asked before each scan; else the queue itself keeps the order."""

    @abstractmethod
    def queue(self) -> WaitingQueue:
        """A new, empty queue that keeps this order."""

    def arranged(self, engine: EngineView, /) -> list[Request]:
        """Everybody who waits, in the order of this scan."""
        return list(engine.waiting)

    def steady_steps(self, engine: EngineView, plan: BatchPlan, /) -> int:
        """For how many steps of this pure-decode plan the order cannot change by itself (>= 1)."""
        return 1 if self.sorts else FOREVER


class Account(Protocol):
    """An admission policy's memory of one scan of the queue."""

    def decide(self, engine: EngineView, request: Request, hit: Hit, chunk_blocks: int, /) -> Decision:
        """May this request start now? `chunk_blocks`: blocks it would hold after the step, hits included. Pure."""

    def charge(self, engine: EngineView, request: Request, tokens: int, /, *, last: bool) -> None:
        """It computes `tokens` in this step, newly admitted or not; `last`: these complete what it knows."""

    def allow(self, engine: EngineView, request: Request, tokens: int, /) -> int:
        """How many of `tokens` a running request may go on with in its prefill. Pure."""

    def spent(self, engine: EngineView, /) -> Decision | None:
        """Why nobody else can be let in after the last one charged; None if the scan may go on. Pure."""


class AdmissionPolicy(Policy, ABC):
    """Who gets in, by resources alone: how long a request has waited is a matter of order.

    A policy that keeps no account of a scan is its own.
    """

    lasting_yes: bool = True
    """Whether who may start now may still start while all others only decode, by reservation (not: by free blocks)."""
    charges: bool = False
    """Whether `charge`, `allow` and `spent` of its accounts do anything."""

    def reservation(self, engine: EngineView, request: Request, /) -> int:
        """Blocks promised to the request as long as it runs; 0 if it just takes what it needs."""
        return 0

    def feasible(self, engine: EngineView, request: Request, /) -> Decision:
        """REJECT what could not start in an empty engine either; asked once, at submission."""
        return ADMIT

    def open(self, engine: EngineView, /) -> Account:
        """The account of one scan."""
        return self

    @abstractmethod
    def decide(self, engine: EngineView, request: Request, hit: Hit, chunk_blocks: int, /) -> Decision:
        """As `Account.decide`."""

    def charge(self, engine: EngineView, request: Request, tokens: int, /, *, last: bool) -> None:
        """As `Account.charge`."""

    def allow(self, engine: EngineView, request: Request, tokens: int, /) -> int:
        """As `Account.allow`."""
        return tokens

    def spent(self, engine: EngineView, /) -> Decision | None:
        """As `Account.spent`."""
        return None

    def steady_steps(self, engine: EngineView, plan: BatchPlan, /) -> int:
        """For how many steps of this pure-decode plan its answer to the blocked head cannot change (>= 1)."""
        return 1


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


class BudgetPolicy(Policy, ABC):
    """How the work of a step is shared out."""

    serve: str = "decode_first"
    """Who is asked first: `list` (whoever stands first in the running list), `decode_first`, or `prefill_first`
    (unfinished prompts, then new ones, then decodes)."""
    limit: float = 1 << 60
    """Tokens or token-work per step, for reports; at least 1 << 60 is unlimited."""
    target_ns: int = 0
    """What a step may take, for reports; 0: it is no matter of time."""
    counts_queue: bool = False
    """Whether a grant depends on how many wait, so that a request behind a blocked head may let that head in."""

    @abstractmethod
    def open(self, engine: EngineView, /) -> Meter:
        """A full budget for one step."""

    def steady_steps(self, engine: EngineView, plan: BatchPlan, /) -> int:
        """For how many steps of this pure-decode plan all its decodes keep fitting (>= 1)."""
        return 1


class PreemptionPolicy(Policy, ABC):
    """Who gives way when a running request's next block is not there, and what becomes of him."""

    timeless: bool = True
    """Whether the same requests in the same step have the same victim at another time."""
    may_swap: bool = False
    """Whether `mode` may be SWAP. Then the engine needs a host pool and brings back whom it has swapped."""

    @abstractmethod
    def victim(self, engine: EngineView, request: Request, draft: StepDraft, /) -> Request | None:
        """One of the running requests, maybe `request` itself; None: nobody, and it waits for this step."""

    def mode(self, engine: EngineView, victim: Request, /) -> PreemptionMode:
        """Whether his KV is dropped or moved to the host, or he ends."""
        return PreemptionMode.RECOMPUTE

    def stay_first(self, requests: list[Request], /) -> list[Request]:
        """Survivors of a step that made room (pass `MakeRoom`), in the list order that they go on in."""
        return requests


class Span(Protocol):
    """Consecutive cached blocks that are accessed, kept and evicted as one."""

    @property
    def last_access(self) -> int:
        """A logical time: larger is later, and no two accesses share one."""

    @property
    def priority(self) -> int:
        """That of the most urgent request that has computed it. Smaller is more urgent."""

    @property
    def num_hits(self) -> int:
        """Requests that have computed it or found it cached on their way."""

    @property
    def length(self) -> int:
        """Blocks."""


@runtime_checkable
class EvictionPolicy(Protocol):
    """Ranks the spans that nobody uses and nothing hangs on. Pure: equal spans, equal ranks."""

    def rank(self, span: Span, /) -> tuple[float, ...]:
        """The smallest goes first; on ties the one whose last access is longest ago."""
