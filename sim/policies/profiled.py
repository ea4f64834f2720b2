"""Profiled admission: reserve what past answers say that a request will need, not the most that it could."""

from __future__ import annotations

from collections import deque
from math import sqrt
from typing import Literal

from sim.core.cohort import FOREVER
from sim.core.events import Admitted, Ended, PolicyEvent
from sim.core.lifecycle import State
from sim.core.plan import ADMIT, BatchPlan, Blocker, Decision, defer
from sim.core.request import Request
from sim.kv.store import Hit
from sim.policies.admission import Optimistic
from sim.policies.lengths import Lengths, SharedLengths, conformal_rank, quantile_rank
from sim.policies.protocols import Account, AdmissionPolicy, EngineView
from sim.policies.registry import ADMISSION

NO_ROOM = defer(Blocker.BLOCKS, "predicted length does not fit")
NO_ROOM_DRIFTED = defer(Blocker.BLOCKS, "max_tokens do not fit (lengths have drifted)")

PROMPT_FITS = Optimistic()

RECENT = 50
"""Answers of a client that the drift guard looks back on."""
ENOUGH = 20
"""From so many on it has an opinion."""


class ClientHistory:
    """One client's answers, and how well they were predicted."""

    def __init__(self, window: int) -> None:
        self.lengths = Lengths(window)
        self.exceeded: deque[bool] = deque(maxlen=RECENT)
        """Of recent answers: longer than predicted when they were let in?"""
        self.drifting = False

    def judge(self, promised: float) -> bool:
        """Look for drift: more answers beyond their prediction than promised, by two standard deviations.

        True if it has just been found.
        """
        n, before = len(self.exceeded), self.drifting
        most = promised * n + 2 * sqrt(n * promised * (1 - promised))
        self.drifting = n >= ENOUGH and sum(self.exceeded) > most
        return self.drifting and not before


@ADMISSION.register("profiled")
class Profiled(AdmissionPolicy):
    """Reserve prompt + predicted output: a quantile of the client's past lengths, of all clients' if it is new.

    `method`: `quantile` (that one) or `conformal` (exceeded with at most `alpha`, also with few lengths). `window`: so
    many lengths are kept per client, used from `min_history` on; before, those of all clients, of which none has more
    than `share` of the weight (at most 1 - quantile, or one client alone can raise it); `estimate` tokens fill up what
    is missing. Never more than max_tokens.
    `outgrown`: a request longer than predicted is reserved for anew, by the lengths beyond its own (`conditional`), or
    for no more than it holds (`optimistic`). Blocks that are not there then are the preemption policy's affair: choose
    one that makes somebody give way.
    Drift guard: while a client's answers exceed their predictions more often than promised, it is reserved max_tokens.
    """

    lasting_yes = False  # running requests outgrow their reservations

    def __init__(
        self,
        quantile: float = 0.9,
        estimate: int = 256,
        method: Literal["quantile", "conformal"] = "quantile",
        alpha: float = 0.1,
        window: int = 256,
        min_history: int = 20,
        share: float = 0.05,
        outgrown: Literal["conditional", "optimistic"] = "conditional",
        margin_blocks: int = 0,
    ) -> None:
        for name, ratio in {"quantile": quantile, "alpha": alpha, "share": share}.items():
            if not 0 < ratio < 1:
                raise ValueError(f"{name} must be > 0 and < 1, got {ratio:g}")
        for name, number in {"estimate": estimate, "window": window, "min_history": min_history}.items():
            if number < 1:
                raise ValueError(f"{name} must be >= 1, got {number}")
        if min_history > window:
            raise ValueError(f"min_history must be <= window, got {min_history} > {window}")
        if margin_blocks < 0:
            raise ValueError(f"margin_blocks must be >= 0, got {margin_blocks}")
        conformal = method == "conformal"
        self.rank = conformal_rank(alpha) if conformal else quantile_rank(quantile)
        self.promised = alpha if conformal else 1 - quantile
        """The share of answers that may be longer than predicted."""
        self.estimate = estimate
        self.window = window
        self.min_history = min_history
        self.conditional = outgrown == "conditional"
        self.margin_blocks = margin_blocks
        self.clients: dict[str, ClientHistory] = {}
        self.shared = SharedLengths(window, share, estimate)
        self.drifts: dict[str, int] = {}
        """Client -> how often the guard has stepped in."""
        self._predicted: dict[Request, int] = {}
        """What was predicted when a live request was first let in."""

    # -- prediction

    def predicted_tokens(self, request: Request) -> int:
        """How many tokens its answer will have, given those that it has."""
        have, client = request.output_tokens, self.clients.get(request.client)
        if client is not None and len(client.lengths) >= self.min_history:
            predicted = client.lengths.predict(self.rank, have)
        elif self.clients:
            predicted = self.shared.predict(self.rank, have)
        else:
            predicted = self.estimate if self.estimate > have else None
        return request.max_tokens if predicted is None else min(predicted, request.max_tokens)

    def drifting(self, client: str) -> bool:
        """Whether the guard reserves max_tokens for this client now."""
        history = self.clients.get(client)
        return history is not None and history.drifting

    def observe(self, event: PolicyEvent) -> None:
        if isinstance(event, Admitted):
            request = event.request
            if request not in self._predicted:
                self._predicted[request] = self.predicted_tokens(request)
        elif isinstance(event, Ended):
            predicted = self._predicted.pop(event.request, None)
            if event.request.state is State.FINISHED:
                self._learn(event.request, predicted)

    def _learn(self, request: Request, predicted: int | None) -> None:
        name, length = request.client, request.output_tokens
        client = self.clients.setdefault(name, ClientHistory(self.window))
        client.lengths.add(length)
        self.shared.add(name, length)
        if predicted is not None:
            client.exceeded.append(length > predicted)
            if client.judge(self.promised):
                self.drifts[name] = self.drifts.get(name, 0) + 1

    def notes(self) -> list[str]:
        """How often, and for how many clients, the guard had to step in."""
        if not self.drifts:
            return []
        times, clients = sum(self.drifts.values()), len(self.drifts)
        return [
            f"profiled admission: output lengths drifted {times} time(s) for {clients} client(s), which were reserved "
            "max_tokens meanwhile"
        ]

    # -- admission

    def reservation(self, engine: EngineView, request: Request) -> int:
        """No more than there is: who is predicted to need more runs alone and may turn out shorter."""
        tokens = request.max_tokens if self.drifting(request.client) else self.predicted_tokens(request)
        blocks = engine.blocks(engine.final_kv_tokens(request) - request.max_tokens + tokens)
        return min(blocks, max(1, engine.store.total_blocks - self.margin_blocks))

    def feasible(self, engine: EngineView, request: Request) -> Decision:
        """The prompt alone must fit the empty pool; predictions may change."""
        return PROMPT_FITS.feasible(engine, request)

    def open(self, engine: EngineView) -> Account:
        return _Scan(self)

    def decide(self, engine: EngineView, request: Request, hit: Hit, chunk_blocks: int) -> Decision:
        return _Scan(self).decide(engine, request, hit, chunk_blocks)

    def outgrown_blocks(self, engine: EngineView) -> int:
        """What running requests need beyond their reservations, because they are longer than was predicted."""
        return sum(
            self._needs(engine, request) - request.reserved_blocks
            for request in engine.running
            if engine.held_blocks(request) > request.reserved_blocks
        )

    def _needs(self, engine: EngineView, request: Request) -> int:
        held = engine.held_blocks(request)
        return max(held, self.reservation(engine, request)) if self.conditional else held

    def steady_steps(self, engine: EngineView, plan: BatchPlan) -> int:
        """Whoever does not fit fits less with every step: decodes take blocks and outgrow predictions, none come free.

        Predictions among ever longer lengths never fall.
        """
        return FOREVER


class _Scan:
    """One scan of the queue: what running requests have outgrown is added up once."""

    __slots__ = ("_outgrown_blocks", "_policy")

    def __init__(self, policy: Profiled) -> None:
        self._policy = policy
        self._outgrown_blocks: int | None = None

    def decide(self, engine: EngineView, request: Request, hit: Hit, chunk_blocks: int) -> Decision:
        """Two tests with one reason, so that the reason does not change while the request waits."""
        policy, store = self._policy, engine.store
        if self._outgrown_blocks is None:
            self._outgrown_blocks = policy.outgrown_blocks(engine)
        promised = engine.reserved_blocks + self._outgrown_blocks + policy.reservation(engine, request)
        needed_now = max(chunk_blocks, engine.blocks(request.known_tokens)) - hit.blocks + hit.free_blocks
        if promised + policy.margin_blocks <= store.total_blocks and needed_now <= store.free_blocks:
            return ADMIT
        return NO_ROOM_DRIFTED if policy.drifting(request.client) else NO_ROOM

    def charge(self, engine: EngineView, request: Request, tokens: int, *, last: bool) -> None:
        """Reservations are the engine's to add up."""

    def allow(self, engine: EngineView, request: Request, tokens: int) -> int:
        return tokens

    def spent(self, engine: EngineView) -> Decision | None:
        return None
