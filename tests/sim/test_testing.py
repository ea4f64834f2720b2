"""Every policy of ours passes the checks for policies; each kind of broken one fails the check that is for it."""

from __future__ import annotations

from typing import Any

import pytest

from sim.policies.admission import Optimistic
from sim.policies.registry import REGISTRIES
from sim.testing import CheckFailed, check_policy, policy_checks
from sim.testing.checks import checks_of
from sim.testing.worlds import EvenCost
from tests.sim import broken_policies as broken

EXAMPLES = 6

PARAMETERS: dict[str, dict[str, Any]] = {
    "token-work": {"max_work": 64.0},
    "step-time": {"target_s": 0.01, "cost": EvenCost()},
    "cheaper": {"cost": EvenCost()},
    "shed-late": {"inner": Optimistic(), "ttft_s": 0.01},
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


test_plain = policy_checks(broken.Plain, margin=2, examples=EXAMPLES)


def test_one_pytest_line_is_one_test_per_check() -> None:
    (mark,) = test_plain.pytestmark  # type: ignore[attr-defined]
    assert mark.args == ("check", list(checks_of("admission")))


@pytest.mark.parametrize(
    ("arguments", "parameters", "expected"),
    [
        ((int,), {}, "int is a policy of no kind or several: give kind=, one of order, admission, budget"),
        ((broken.Plain,), {"kind": "budget"}, "Plain is not a subclass of BudgetPolicy"),
        ((broken.Plain,), {"margins": 2}, "Plain has no parameter 'margins': it has margin"),
        ((broken.Plain,), {"margin": "x"}, "margin must be a whole number, got 'x'"),
    ],
)
def test_wrong_use_is_told_at_once(arguments: Any, parameters: Any, expected: str) -> None:
    with pytest.raises((TypeError, ValueError), match=expected):
        policy_checks(*arguments, **parameters)


# -- broken ones

test_ends_all = policy_checks(broken.EndsAll, examples=EXAMPLES)


@pytest.mark.parametrize(
    ("policy", "check", "expected"),
    [
        (broken.SaysNone, "contract", "broke 'decide returns a Decision': got None for request r"),
        (broken.AdmitsAll, "contract", "broke 'decide admits only what fits': got ADMIT with"),
        (broken.GivesNoReason, "contract", "broke 'decide names a reason'"),
        (broken.Raises, "contract", "broke 'decide raises nothing': got KeyError: 'oops' \\(broken_policies.py, line"),
        (broken.Mutates, "contract", "broke 'decide changes nothing': got a change of request r"),
        (broken.MutatesOthers, "pure", "broke 'decide changes nothing': got a change of request r"),
        (broken.Counts, "pure", "broke 'decide"),
        (broken.Reserves, "contract", "broke 'reservation returns a whole number': got 0.5"),
        (broken.KeepsInTheClass, "own_state", "the class keeps state of a run: KeepsInTheClass.ended"),
        (broken.RemembersInTheClass, "repeatable", "two runs of one world differ in"),
        (broken.SeesTheTruth, "sees_no_truth", "depends on how long the answer of r"),
        (broken.PromisesTooMuch, "steady", "steps in stretches and one by one differ in"),
        (broken.LosesSomebody, "contract", "broke 'arranged returns everybody once'"),
        (broken.ClaimsTooMuch, "starves_nobody", "the least urgent does not get in"),
        (broken.Greedy, "contract", "broke 'grant is 0 to"),
        (broken.Negative, "contract", "broke 'grant is 0 to"),
        (broken.NotANumber, "contract", "broke 'grant returns a whole number': got nan"),
        (broken.OverTheLimit, "within_limit", "a step of .* tokens, the budget is 16"),
        (broken.KeepsRefunds, "within_limit", "and a refund"),
        (broken.SharesItsCopy, "within_limit", "spending on a copy changes the meter"),
        (broken.PicksTheDead, "contract", "broke 'victim is running'"),
        (broken.NoMode, "contract", "broke 'mode returns a PreemptionMode': got 'recompute'"),
        (broken.RanksNothing, "contract", "broke 'rank has an order'"),
    ],
)
def test_a_broken_policy_fails_the_check_for_it(policy: type[Any], check: str, expected: str) -> None:
    with pytest.raises(CheckFailed, match=f"(?s){policy.__name__} fails '{check}': .*{expected}"):
        check_policy(policy, check=check, examples=60)
