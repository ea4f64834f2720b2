"""The guard: asks in an engine's place, looks at what comes back, and says who broke which rule.

What the rules of each kind of policy are stands in `sim.policies.guarded`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

from sim.core.plan import ADMIT, Blocker, Decision, Verdict
from sim.core.request import Request
from sim.policies.watch import Watch

if TYPE_CHECKING:
    from sim.policies.protocols import EngineView


class PolicyBroke(RuntimeError):
    """A policy broke its contract; the text names the policy, the rule, what came instead, and the request."""


class Guard:
    """Stands in the place of a policy (or of a meter, account or queue that it has made)."""

    def __init__(self, kind: str, name: str, guarded: Any, watch: Watch) -> None:
        self._kind = kind
        self._name = name
        self._guarded = guarded
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        """What is not watched: its settings."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._guarded, name)

    def broke(self, rule: str, got: object, request: Request | None = None) -> PolicyBroke:
        whom = f" for request {request.id}" if request is not None else ""
        return PolicyBroke(f"{self._kind} {self._name!r} broke '{rule}': got {got}{whom}")

    def call(self, method: str, *arguments: Any, about: Request | None = None, **options: Any) -> Any:
        """A command, or a question that may change what is asked. Nothing but its exceptions is looked at."""
        try:
            return getattr(self._guarded, method)(*arguments, **options)
        except PolicyBroke:
            raise
        except Exception as error:
            raise self.broke(f"{method} raises nothing", _told(error), about) from error

    def ask(
        self, method: str, *arguments: Any, engine: EngineView | None, about: Request | None = None, **options: Any
    ) -> Any:
        """A pure question: the answer, if asking has changed nothing."""
        before = self._watch.state(engine, about)
        answer = self.call(method, *arguments, about=about, **options)
        again = self.call(method, *arguments, about=about, **options) if self._watch.asks_twice else answer
        if again is not answer and again != answer:
            raise self.broke(f"{method} is pure: asked twice, it says the same", f"{answer!r}, then {again!r}", about)
        change = self._watch.change(before, self._watch.state(engine, about))
        if change is not None:
            raise self.broke(f"{method} changes nothing", change, about)
        return answer

    def whole(self, method: str, answer: object, least: int, most: float = math.inf, about: Any = None) -> int:
        """A whole number within bounds."""
        if type(answer) is not int:
            raise self.broke(f"{method} returns a whole number", repr(answer), about)
        if not least <= answer <= most:
            bounds = f">= {least}" if most == math.inf else f"{least} to {most}"
            raise self.broke(f"{method} is {bounds}", answer, about)
        return answer

    def decision(self, method: str, answer: object, allowed: Sequence[Verdict], about: Request | None) -> Decision:
        if not isinstance(answer, Decision):
            raise self.broke(f"{method} returns a Decision", repr(answer), about)
        if answer.verdict not in allowed:
            raise self.broke(f"{method} says {' or '.join(v.name for v in allowed)}", answer.verdict.name, about)
        if answer.verdict is Verdict.ADMIT:
            return ADMIT
        if not answer.reason:
            raise self.broke(f"{method} names a reason", "none", about)
        if answer.verdict is Verdict.DEFER and answer.blocker in (Blocker.NOTHING, Blocker.STEP):
            raise self.broke(f"{method} says what is lacking", answer.blocker.name, about)
        return answer

    def same_requests(self, method: str, answer: object, wanted: Iterable[Request]) -> list[Request]:
        """Each of these once, in any order."""
        if not isinstance(answer, list) or {*answer} != {*wanted} or len({*answer}) != len(answer):
            raise self.broke(f"{method} returns everybody once", _listed(answer))
        return answer


def _told(error: Exception) -> str:
    """`ZeroDivisionError: division by zero (mine.py, line 17)`"""
    last = extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({PurePath(last.filename).name}, line {last.lineno})"


def _listed(answer: object) -> str:
    if isinstance(answer, list):
        return "[" + ", ".join(each.id if isinstance(each, Request) else repr(each) for each in answer) + "]"
    return repr(answer)
