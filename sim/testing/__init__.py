"""Checks that every policy must pass, for the tests of whoever writes one:

    from sim.testing import policy_checks
    from mine import MyAdmission

    test_mine = policy_checks(MyAdmission, alpha=0.1)

pytest runs that as one test per check. What a check asks for stands in its docstring in `sim.testing.checks`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from sim.policies.guard import PolicyBroke
from sim.policies.parameters import checked
from sim.policies.registry import REGISTRIES
from sim.testing.checks import CHECKS, NEEDS_NO_WORLD, Subject, checks_of
from sim.testing.worlds import random_world

__all__ = ["CheckFailed", "check_policy", "policy_checks"]

EXAMPLES = 25


class CheckFailed(AssertionError):
    """A policy does not keep to a check; the text names both."""


def policy_checks(
    policy: type[Any], *, kind: str | None = None, examples: int = EXAMPLES, **parameters: Any
) -> Callable[[str], None]:
    """A test for pytest that takes a policy, with these parameters, through every check of its kind.

    `examples`: random worlds per check, the same ones each time. Needs pytest and hypothesis.
    """
    import pytest

    subject = _subject(policy, kind, parameters)

    @pytest.mark.parametrize("check", list(checks_of(subject.kind)))
    def test(check: str) -> None:
        _run(subject, check, examples)

    return test


def check_policy(
    policy: type[Any], *, kind: str | None = None, examples: int = EXAMPLES, check: str | None = None, **parameters: Any
) -> None:
    """The same without pytest: all checks, or one by name. Raises CheckFailed at the first that fails."""
    subject = _subject(policy, kind, parameters)
    for name in checks_of(subject.kind) if check is None else [check]:
        _run(subject, name, examples)


def _subject(policy: type[Any], kind: str | None, parameters: dict[str, Any]) -> Subject:
    kinds = [each for each, registry in REGISTRIES.items() if issubclass(policy, registry.base)]
    if kind is None and len(kinds) != 1:
        raise TypeError(
            f"{policy.__name__} is a policy of no kind or several: give kind=, one of {', '.join(REGISTRIES)}"
        )
    kind = kind or kinds[0]
    if kind not in kinds:
        raise TypeError(f"{policy.__name__} is not a subclass of {REGISTRIES[kind].base.__name__}")
    return Subject(kind, policy, checked(policy, policy.__name__, parameters))


def _run(subject: Subject, check: str, examples: int) -> None:
    """A check in many worlds. They are small as they come: looking for a smaller one takes longer than reading one."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st

    failures: list[CheckFailed] = []

    @settings(
        max_examples=1 if check in NEEDS_NO_WORLD else examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(rng=st.randoms(use_true_random=False))
    def in_worlds(rng: Random) -> None:
        world = random_world(rng, subject.kind)
        try:
            CHECKS[check](subject, world)
        except (AssertionError, PolicyBroke) as error:
            failures.append(CheckFailed(f"{subject.cls.__name__} fails '{check}': {error}\n{world}"))
            raise failures[0] from error

    try:
        in_worlds()
    except Exception:  # hypothesis has its own words for what fails in one run and not in the next
        if failures:
            raise failures[0] from failures[0].__cause__
        raise
