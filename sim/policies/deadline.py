"""Deadlines: whoever must have his next token soonest goes first, and whoever cannot have it in time is let go.

A request's deadline is the time by which its next token is due: arrival + TTFT target + a TPOT target for each token
that it has. (EDF and least slack, Liu and Layland 1973; for serving: SLOs-Serve, llm-d's `slo-deadline` order.)
"""

from __future__ import annotations

from collections.abc import Mapping

from sim.core.events import PolicyEvent
from sim.core.lifecycle import State
from sim.core.plan import BatchPlan, Decision, reject
from sim.core.queue import SortedQueue, WaitingQueue
from sim.core.request import Request
from sim.kv.store import Hit
from sim.policies.protocols import Account, AdmissionPolicy, EngineView, OrderPolicy
from sim.policies.registry import ADMISSION, ORDER

NS_PER_S = 1_000_000_000


def nanoseconds(name: str, seconds: float) -> int:
    """A parameter in seconds as the clock counts. Raises ValueError for negative and endless ones."""
    if not 0 <= seconds < 1e9:
        raise ValueError(f"{name} must be >= 0 and < 1e9, got {seconds:g}")
    return round(seconds * NS_PER_S)


class Deadlines:
    """When requests are due."""

    def __init__(self, ttft_s: float, tpot_s: float, client_ttft_s: Mapping[str, float] | None) -> None:
        self.ttft_ns = nanoseconds("ttft_s", ttft_s)
        self.tpot_ns = nanoseconds("tpot_s", tpot_s)
        own = client_ttft_s or {}
        self.client_ttft_ns = {client: nanoseconds(f"client_ttft_s of {client!r}", own[client]) for client in own}

    def due_ns(self, request: Request) -> int:
        """When its next token is due. Does not change while it waits."""
        ttft_ns = self.client_ttft_ns.get(request.client, self.ttft_ns)
        return request.arrival_ns + ttft_ns + self.tpot_ns * request.output_tokens


class Service:
    """What a waiting request still has to be computed before its next token comes out, by a rate."""

    def __init__(self, prefill_tokens_per_s: float) -> None:
        if not prefill_tokens_per_s > 0:
            raise ValueError(f"prefill_tokens_per_s must be > 0, got {prefill_tokens_per_s:g}")
        self.ns_per_token = NS_PER_S / prefill_tokens_per_s

    def remaining_ns(self, request: Request) -> int:
        """Its known tokens at the rate: what may be cached is not looked up."""
        return round(request.known_tokens * self.ns_per_token)


@ORDER.register("edf")
class EarliestDeadline(OrderPolicy):
    """Earliest deadline first: arrival + `ttft_s`, or a client's own target, + `tpot_s` for each token it has.

    `client_ttft_s`: a table of targets by client; the others have `ttft_s`. With one target for all and no preemptions
    this is the order of arrival.
    """

    def __init__(
        self, ttft_s: float = 2.0, tpot_s: float = 0.0, client_ttft_s: Mapping[str, float] | None = None
    ) -> None:
        self.deadlines = Deadlines(ttft_s, tpot_s, client_ttft_s)

    def queue(self) -> WaitingQueue:
        return SortedQueue(self._key)

    def _key(self, request: Request) -> tuple[int, int]:
        return self.deadlines.due_ns(request), request.number


@ORDER.register("least-slack")
class LeastSlack(OrderPolicy):
    """Least slack first: deadline (as in `edf`) - now - the prefill still to do at `prefill_tokens_per_s`.

    Now is the same for all, so the order among those who wait never changes by itself.
    """

    def __init__(
        self,
        prefill_tokens_per_s: float = 10_000.0,
        ttft_s: float = 2.0,
        tpot_s: float = 0.0,
        client_ttft_s: Mapping[str, float] | None = None,
    ) -> None:
        self.deadlines = Deadlines(ttft_s, tpot_s, client_ttft_s)
        self.service = Service(prefill_tokens_per_s)

    def queue(self) -> WaitingQueue:
        return SortedQueue(self._key)

    def _key(self, request: Request) -> tuple[int, int]:
        return self.deadlines.due_ns(request) - self.service.remaining_ns(request), request.number


@ADMISSION.register("shed-late")
class ShedLate(AdmissionPolicy):
    """Another admission policy, before which requests end (REJECT) that cannot have their first token in time any more.

    `inner`: that policy, by name or as a table of name and parameters; by default the preset's own. The first token is
    due at arrival + `ttft_s` (or a client's own). With `prefill_tokens_per_s` a request ends as soon as its prefill at
    that rate would come too late ("no slack"); 0 lets it end only when it is late ("deadline passed"). Looked at are
    those whom the scan of the queue comes to; who has a token already, or runs, is let alone.
    """

    def __init__(
        self,
        inner: AdmissionPolicy,
        ttft_s: float = 2.0,
        prefill_tokens_per_s: float = 0.0,
        client_ttft_s: Mapping[str, float] | None = None,
    ) -> None:
        self.inner = inner
        self.charges = inner.charges
        self.lasting_yes = False
        self.deadlines = Deadlines(ttft_s, 0.0, client_ttft_s)
        self.service = Service(prefill_tokens_per_s) if prefill_tokens_per_s else None

    def too_late(self, now_ns: int, request: Request) -> Decision | None:
        """Why its first token cannot be in time any more; None if it can, or if it has come."""
        if request.state is not State.QUEUED or request.output_tokens:
            return None
        due_ns = self.deadlines.due_ns(request)
        if now_ns > due_ns:
            return reject("deadline passed", f"due {_seconds(due_ns)}, looked at {_seconds(now_ns)}")
        needs_ns = self.service.remaining_ns(request) if self.service is not None else 0
        if now_ns + needs_ns > due_ns:
            return reject("no slack", f"due {_seconds(due_ns)}, at {_seconds(now_ns)} it needs {_seconds(needs_ns)}")
        return None

    def open(self, engine: EngineView) -> Account:
        return _SheddingAccount(self, self.inner.open(engine))

    def decide(self, engine: EngineView, request: Request, hit: Hit, chunk_blocks: int) -> Decision:
        return self.too_late(engine.now_ns, request) or self.inner.decide(engine, request, hit, chunk_blocks)

    def reservation(self, engine: EngineView, request: Request) -> int:
        return self.inner.reservation(engine, request)

    def feasible(self, engine: EngineView, request: Request) -> Decision:
        return self.inner.feasible(engine, request)

    def observe(self, event: PolicyEvent) -> None:
        self.inner.observe(event)

    def notes(self) -> list[str]:
        return self.inner.notes()

    def steady_steps(self, engine: EngineView, plan: BatchPlan) -> int:
        """Whoever is blocked now may be late by the next step."""
        return 1


class _SheddingAccount:
    """The inner policy's account of a scan, asked about those who can be in time."""

    __slots__ = ("_account", "_policy")

    def __init__(self, policy: ShedLate, account: Account) -> None:
        self._policy = policy
        self._account = account

    def decide(self, engine: EngineView, request: Request, hit: Hit, chunk_blocks: int) -> Decision:
        late = self._policy.too_late(engine.now_ns, request)
        return late or self._account.decide(engine, request, hit, chunk_blocks)

    def charge(self, engine: EngineView, request: Request, tokens: int, *, last: bool) -> None:
        self._account.charge(engine, request, tokens, last=last)

    def allow(self, engine: EngineView, request: Request, tokens: int) -> int:
        return self._account.allow(engine, request, tokens)

    def spent(self, engine: EngineView) -> Decision | None:
        return self._account.spent(engine)


def _seconds(time_ns: int) -> str:
    return f"{time_ns / NS_PER_S:.3f} s"
