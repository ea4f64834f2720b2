"""Every policy of ours passes the checks for policies; each kind of broken one fails the check that is for it."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from sim.core.cohort import FOREVER
from sim.core.plan import ADMIT, Blocker, PreemptionMode, defer, reject
from sim.core.queue import SortedQueue
from sim.policies.budget import ListOrder, TokenMeter
from sim.policies.protocols import AdmissionPolicy, OrderPolicy, PreemptionPolicy
from sim.policies.registry import REGISTRIES
from sim.testing import CheckFailed, check_policy, policy_checks
from sim.testing.checks import checks_of
from sim.testing.worlds import EvenCost

EXAMPLES = 12

PARAMETERS: dict[str, dict[str, Any]] = {
    "token-work": {"max_work": 64.0},
    "step-time": {"target_s": 0.01, "cost": EvenCost()},
    "cheaper": {"cost": EvenCost()},
}
"""For policies that cannot do without some, or are nothing without."""

OURS = [
    (kind, name, check)
    for kind, registry in REGISTRIES.items()
    for name in registry.names()
    for check in checks_of(kind)
]


@pytest.mark.parametrize(("kind", "name", "check"), OURS)
def test_every_policy_of_ours_passes(kind: str, name: str, check: str) -> None:
    cls: Any = REGISTRIES[kind].maker(name)
    check_policy(cls, kind=kind, check=check, examples=EXAMPLES, **PARAMETERS.get(name, {}))


# -- as a user writes it

NO_BLOCKS = defer(Blocker.BLOCKS, "no blocks")
TIRED = defer(Blocker.POLICY, "tired")


class Plain(AdmissionPolicy):
    """Right: what fits gets in."""

    def __init__(self, margin: int = 0) -> None:
        self.margin = margin

    def decide(self, engine: Any, request: Any, hit: Any, chunk_blocks: int) -> Any:
        need = chunk_blocks - hit.blocks + hit.free_blocks
        margin = self.margin if engine.running else 0
        return ADMIT if need + margin <= engine.store.free_blocks else NO_BLOCKS


test_plain = policy_checks(Plain, margin=2, examples=EXAMPLES)


def test_one_pytest_line_is_one_test_per_check() -> None:
    (mark,) = test_plain.pytestmark  # type: ignore[attr-defined]
    assert mark.args == ("check", list(checks_of("admission")))


@pytest.mark.parametrize(
    ("arguments", "parameters", "expected"),
    [
        ((int,), {}, "int is of no kind or of several: give kind=, one of order, admission, budget"),
        ((Plain,), {"kind": "budget"}, "Plain is not a subclass of BudgetPolicy"),
        ((Plain,), {"margins": 2}, "Plain has no parameter 'margins': it has margin"),
        ((Plain,), {"margin": "x"}, "margin must be a whole number, got 'x'"),
    ],
)
def test_wrong_use_is_told_at_once(arguments: Any, parameters: Any, expected: str) -> None:
    with pytest.raises((TypeError, ValueError), match=expected):
        policy_checks(*arguments, **parameters)


# -- broken ones


class SaysNone(Plain):
    def decide(self, *about: Any) -> Any:
        return None


class AdmitsAll(Plain):
    def decide(self, *about: Any) -> Any:
        return ADMIT


class GivesNoReason(Plain):
    def decide(self, *about: Any) -> Any:
        return defer(Blocker.POLICY, "")


class Raises(Plain):
    def decide(self, *about: Any) -> Any:
        raise KeyError("oops")


class Mutates(Plain):
    def decide(self, engine: Any, request: Any, *about: Any) -> Any:
        request.priority += 1
        return super().decide(engine, request, *about)


class MutatesOthers(Plain):
    def decide(self, engine: Any, request: Any, *about: Any) -> Any:
        for other in engine.waiting:
            other.priority = 7
        return super().decide(engine, request, *about)


class Counts(Plain):
    """Its answer depends on how often it was asked."""

    asked = 0

    def decide(self, *about: Any) -> Any:
        self.asked += 1
        return TIRED if self.asked % 3 == 0 else super().decide(*about)


class Reserves(Plain):
    def reservation(self, engine: Any, request: Any) -> Any:
        return 0.5


class KeepsInTheClass(Plain):
    ended: ClassVar[list[str]] = []

    def observe(self, event: Any) -> None:
        self.ended.append(type(event).__name__)


class RemembersInTheClass(KeepsInTheClass):
    def decide(self, *about: Any) -> Any:
        return TIRED if len(self.ended) % 7 == 3 else super().decide(*about)


class SeesTheTruth(Plain):
    """Reads the core's own knowledge of where an answer ends."""

    def decide(self, engine: Any, request: Any, *about: Any) -> Any:
        if engine._endings._stop_after[request] > 10:
            return reject("too long", "")
        return super().decide(engine, request, *about)


class PromisesTooMuch(Plain):
    """Its answer changes with the clock, and it says that it does not."""

    def decide(self, engine: Any, *about: Any) -> Any:
        return TIRED if engine.running and engine.now_ns // 7_000_000 % 2 else super().decide(engine, *about)

    def steady_steps(self, engine: Any, plan: Any) -> int:
        return FOREVER


class LosesSomebody(OrderPolicy):
    sorts = True

    def queue(self) -> Any:
        from sim.core.queue import FifoQueue

        return FifoQueue()

    def arranged(self, engine: Any) -> Any:
        return list(engine.waiting)[1:]


class ClaimsTooMuch(OrderPolicy):
    """Priority alone, and says that nobody starves."""

    prevents_starvation = True

    def queue(self) -> Any:
        return SortedQueue(lambda request: (request.priority, request.number))


class Greedy(ListOrder):
    """Grants more than is wanted."""

    def open(self, engine: Any) -> Any:
        class Meter(TokenMeter):
            def grant(self, want: int, context: int, **how: Any) -> Any:
                return want + 1

            def copy(self) -> Any:
                return Meter(self.left, self.chunk_cap, self.chunked)

        return Meter(self.max_tokens, 1 << 60, True)


class Negative(ListOrder):
    def open(self, engine: Any) -> Any:
        class Meter(TokenMeter):
            def grant(self, want: int, context: int, **how: Any) -> Any:
                return -1

        return Meter(self.max_tokens, 1 << 60, True)


class NotANumber(ListOrder):
    def open(self, engine: Any) -> Any:
        class Meter(TokenMeter):
            def grant(self, want: int, context: int, **how: Any) -> Any:
                return float("nan")

        return Meter(self.max_tokens, 1 << 60, True)


class OverTheLimit(ListOrder):
    """Says 16 and hands out 64."""

    def __init__(self) -> None:
        super().__init__(max_tokens=16)

    def open(self, engine: Any) -> Any:
        return TokenMeter(64, 1 << 60, True)


class KeepsRefunds(ListOrder):
    def __init__(self) -> None:
        super().__init__(max_tokens=16)

    def open(self, engine: Any) -> Any:
        class Meter(TokenMeter):
            def refund(self, tokens: int, context: int, **how: Any) -> None:
                pass

            def copy(self) -> Any:
                return Meter(self.left, self.chunk_cap, self.chunked)

        return Meter(self.max_tokens, 1 << 60, True)


class SharesItsCopy(KeepsRefunds):
    def open(self, engine: Any) -> Any:
        class Meter(TokenMeter):
            def copy(self) -> Any:
                return self

        return Meter(self.max_tokens, 1 << 60, True)


class PicksTheDead(PreemptionPolicy):
    """The first that ever gave way, whatever has become of it."""

    def victim(self, engine: Any, request: Any, draft: Any) -> Any:
        return next(iter(engine.waiting), request)


class NoMode(PreemptionPolicy):
    def victim(self, engine: Any, request: Any, draft: Any) -> Any:
        return request

    def mode(self, engine: Any, victim: Any) -> Any:
        return "recompute"


class EndsAll(NoMode):
    """Right, if hard."""

    def mode(self, engine: Any, victim: Any) -> Any:
        return PreemptionMode.FAIL


class RanksNothing:
    def rank(self, span: Any) -> Any:
        return (float("nan"),)


test_ends_all = policy_checks(EndsAll, examples=EXAMPLES)


@pytest.mark.parametrize(
    ("policy", "check", "expected"),
    [
        (SaysNone, "contract", "broke 'decide returns a Decision': got None for request r"),
        (AdmitsAll, "contract", "broke 'decide admits only what fits': got ADMIT with"),
        (GivesNoReason, "contract", "broke 'decide names a reason'"),
        (Raises, "contract", "broke 'decide raises nothing': got KeyError: 'oops' \\(test_testing.py, line"),
        (Mutates, "contract", "broke 'decide changes nothing': got a change of request r"),
        (MutatesOthers, "pure", "broke 'decide changes nothing': got a change of request r"),
        (Counts, "pure", "broke 'decide"),
        (Reserves, "contract", "broke 'reservation returns a whole number': got 0.5"),
        (KeepsInTheClass, "own_state", "the class keeps state of a run: KeepsInTheClass.ended"),
        (RemembersInTheClass, "repeatable", "two runs of one world differ in"),
        (SeesTheTruth, "sees_no_truth", "depends on how long the answer of r"),
        (PromisesTooMuch, "steady", "steps in stretches and one by one differ in"),
        (LosesSomebody, "contract", "broke 'arranged returns everybody once'"),
        (ClaimsTooMuch, "starves_nobody", "the least urgent does not get in"),
        (Greedy, "contract", "broke 'grant is 0 to"),
        (Negative, "contract", "broke 'grant is 0 to"),
        (NotANumber, "contract", "broke 'grant returns a whole number': got nan"),
        (OverTheLimit, "within_limit", "a step of .* tokens, the budget is 16"),
        (KeepsRefunds, "within_limit", "and a refund"),
        (SharesItsCopy, "within_limit", "spending on a copy changes the meter"),
        (PicksTheDead, "contract", "broke 'victim is running'"),
        (NoMode, "contract", "broke 'mode returns a PreemptionMode': got 'recompute'"),
        (RanksNothing, "contract", "broke 'rank has an order'"),
    ],
)
def test_a_broken_policy_fails_the_check_for_it(policy: type[Any], check: str, expected: str) -> None:
    with pytest.raises(CheckFailed, match=f"(?s){policy.__name__} fails '{check}': .*{expected}"):
        check_policy(policy, check=check, examples=60)
