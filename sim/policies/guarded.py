"""Third parties' policies under guard: who breaks the contract is stopped, by name, before the engine is spoilt.

A guard stands in a policy's place, hands every question on and looks at the answer. Policies of this project are not
guarded: they are tested (`sim.testing`) instead. How closely is looked is a `Watch`: a glance in a replay, everything
in tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sim.core.plan import ADMIT, Decision, PreemptionMode, Verdict
from sim.core.request import Request
from sim.policies.guard import Guard
from sim.policies.protocols import Policy
from sim.policies.watch import GLANCE, Watch

if TYPE_CHECKING:
    from sim.core.spec import EngineSpec
    from sim.kv.store import Hit
    from sim.policies.protocols import EngineView, Span

SERVES = ("list", "decode_first", "prefill_first")


class GuardedPolicy(Guard, Policy):
    """What all kinds have in common."""

    def __init__(self, kind: str, policy: object, watch: Watch = GLANCE) -> None:
        super().__init__(kind, type(policy).__name__, policy, watch)

    def observe(self, event: object) -> None:
        request = getattr(event, "request", None)
        before = self._watch.state(None, request)
        self.call("observe", event, about=request)
        change = self._watch.change(before, self._watch.state(None, request))
        if change is not None:
            raise self.broke("observe changes nothing but the policy", change, request)

    def notes(self) -> list[str]:
        answer = self.call("notes") if hasattr(self._guarded, "notes") else []
        if not isinstance(answer, list) or not all(isinstance(line, str) for line in answer):
            raise self.broke("notes returns a list of texts", repr(answer))
        return answer

    def steady_steps(self, engine: EngineView, plan: object) -> int:
        return self.whole("steady_steps", self.ask("steady_steps", engine, plan, engine=engine), 1)


class GuardedOrder(GuardedPolicy):
    def queue(self) -> GuardedQueue:
        return GuardedQueue(self._kind, self._name, self.call("queue"), self._watch)

    def arranged(self, engine: EngineView) -> list[Request]:
        waiting = list(engine.waiting)
        return self.same_requests("arranged", self.ask("arranged", engine, engine=engine), waiting)


class GuardedQueue(Guard):
    """Knows by itself who waits."""

    def __init__(self, kind: str, name: str, queue: Any, watch: Watch) -> None:
        super().__init__(kind, name, queue, watch)
        self._members: dict[Request, None] = {}

    def push(self, request: Request) -> None:
        self._members[request] = None
        self.call("push", request, about=request)

    def push_front(self, request: Request) -> None:
        self._members[request] = None
        self.call("push_front", request, about=request)

    def remove(self, request: Request) -> None:
        del self._members[request]
        self.call("remove", request, about=request)

    def arrange(self, requests: Iterable[Request]) -> None:
        self.call("arrange", requests)

    def first(self) -> Request:
        return self._member("queue.first", self.call("first"))

    def _member(self, method: str, answer: Any) -> Request:
        if answer not in self._members:
            raise self.broke(f"{method} returns one who waits", repr(answer))
        return answer  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Request]:
        for request in self.call("__iter__"):
            yield self._member("queue", request)


class GuardedAccount(Guard):
    """An admission policy, or the account that it has opened for a scan."""

    def decide(self, engine: EngineView, request: Request, hit: Hit, chunk_blocks: int) -> Decision:
        answer = self.ask("decide", engine, request, hit, chunk_blocks, engine=engine, about=request)
        decision = self.decision("decide", answer, (Verdict.ADMIT, Verdict.DEFER, Verdict.REJECT), request)
        need, free = chunk_blocks - hit.blocks + hit.free_blocks, engine.store.free_blocks
        if decision is ADMIT and need > free:
            raise self.broke("decide admits only what fits", f"ADMIT with {need} blocks to take, {free} free", request)
        return decision

    def charge(self, engine: EngineView, request: Request, tokens: int, *, last: bool) -> None:
        self.call("charge", engine, request, tokens, about=request, last=last)

    def allow(self, engine: EngineView, request: Request, tokens: int) -> int:
        answer = self.ask("allow", engine, request, tokens, engine=engine, about=request)
        return self.whole("allow", answer, 0, tokens, request)

    def spent(self, engine: EngineView) -> Decision | None:
        answer = self.ask("spent", engine, engine=engine)
        return None if answer is None else self.decision("spent", answer, (Verdict.DEFER,), None)


class GuardedAdmission(GuardedPolicy, GuardedAccount):
    def reservation(self, engine: EngineView, request: Request) -> int:
        answer = self.ask("reservation", engine, request, engine=engine, about=request)
        return self.whole("reservation", answer, 0, about=request)

    def feasible(self, engine: EngineView, request: Request) -> Decision:
        answer = self.ask("feasible", engine, request, engine=engine, about=request)
        return self.decision("feasible", answer, (Verdict.ADMIT, Verdict.REJECT), request)

    def open(self, engine: EngineView) -> GuardedAccount:
        account = self.call("open", engine)
        return self if account is self._guarded else GuardedAccount(self._kind, self._name, account, self._watch)


class GuardedBudget(GuardedPolicy):
    def __init__(self, kind: str, policy: Any, watch: Watch = GLANCE) -> None:
        super().__init__(kind, policy, watch)
        if policy.serve not in SERVES:
            raise self.broke(f"serve is one of {', '.join(SERVES)}", repr(policy.serve))

    def open(self, engine: EngineView) -> GuardedMeter:
        return GuardedMeter(self._kind, self._name, self.call("open", engine), self._watch)


class GuardedMeter(Guard):
    def copy(self) -> GuardedMeter:
        return GuardedMeter(self._kind, self._name, self.call("copy"), self._watch)

    def has_left(self) -> bool:
        return self._yes_or_no("has_left", self.ask("has_left", engine=None))

    def spend_decodes(self, requests: int, context_tokens: int) -> bool:
        return self._yes_or_no("spend_decodes", self.call("spend_decodes", requests, context_tokens))

    def _yes_or_no(self, method: str, answer: object) -> bool:
        if not isinstance(answer, bool):
            raise self.broke(f"{method} returns True or False", repr(answer))
        return answer

    def grant(self, want: int, context: int, *, decode: bool, admitting: bool) -> int | None:
        answer = self.ask("grant", want, context, engine=None, decode=decode, admitting=admitting)
        return None if answer is None else self.whole("grant", answer, 0, want)

    def spend(self, tokens: int, context: int, *, decode: bool) -> None:
        self.call("spend", tokens, context, decode=decode)

    def refund(self, tokens: int, context: int, *, decode: bool) -> None:
        self.call("refund", tokens, context, decode=decode)


class GuardedPreemption(GuardedPolicy):
    def victim(self, engine: EngineView, request: Request, draft: object) -> Request | None:
        answer = self.ask("victim", engine, request, draft, engine=engine, about=request)
        if answer is None:
            return None
        if not isinstance(answer, Request):
            raise self.broke("victim returns a Request or None", repr(answer), request)
        if answer not in engine.running:
            raise self.broke("victim is running", f"{answer.id}, {answer.state.value},", request)
        return answer

    def mode(self, engine: EngineView, victim: Request) -> PreemptionMode:
        answer = self.ask("mode", engine, victim, engine=engine, about=victim)
        if not isinstance(answer, PreemptionMode):
            raise self.broke("mode returns a PreemptionMode", repr(answer), victim)
        return answer

    def stay_first(self, requests: list[Request]) -> list[Request]:
        return self.same_requests("stay_first", self.ask("stay_first", requests, engine=None), requests)


class GuardedEviction(GuardedPolicy):
    def rank(self, span: Span) -> tuple[float, ...]:
        answer = self.ask("rank", span, engine=None)
        if not isinstance(answer, tuple) or not all(isinstance(each, int | float) for each in answer):
            raise self.broke("rank returns a tuple of numbers", repr(answer))
        if any(math.isnan(each) for each in answer):
            raise self.broke("rank has an order", repr(answer))
        return answer


GUARDS: dict[str, Callable[..., Any]] = {
    "order": GuardedOrder,
    "admission": GuardedAdmission,
    "budget": GuardedBudget,
    "preemption": GuardedPreemption,
    "eviction": GuardedEviction,
}


def is_ours(policy: object) -> bool:
    return type(policy).__module__.startswith("sim.")


def guarded(spec: EngineSpec) -> EngineSpec:
    """The spec with guards around the policies that do not come from this project."""
    kinds = {kind: getattr(spec, kind) for kind in GUARDS}
    foreign = {kind: policy for kind, policy in kinds.items() if policy is not None and not is_ours(policy)}
    return replace(spec, **{kind: GUARDS[kind](kind, policy) for kind, policy in foreign.items()}) if foreign else spec
