"""What a policy must keep to, as checks by name: each takes it through a random world and complains by assertion.

Numbers of laws are those of the README.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sim.core.engine import EngineCore
from sim.core.lifecycle import TERMINAL
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE, Reference
from sim.policies.guarded import GUARDS
from sim.policies.watch import FullWatch, Watch
from sim.results.columns import NEVER
from sim.testing.worlds import LIMITS, EvenCost, Row, Run, World, run

UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class Subject:
    """The policy under test: how to make one."""

    kind: str
    cls: type[Any]
    parameters: dict[str, Any]

    def make(self) -> Any:
        return self.cls(**self.parameters)

    def in_world(self, world: World) -> World:
        return world.having(self.kind, self.make())

    def guarded_in(self, world: World, watch: Watch) -> World:
        return world.having(self.kind, GUARDS[self.kind](self.kind, self.make(), watch))


Check = Callable[[Subject, World], None]


def contract(subject: Subject, world: World) -> None:
    """Every answer is one that the engine can use: of the right kind, within what was asked for, about who is there."""
    run(subject.guarded_in(world, Watch()))


def pure(subject: Subject, world: World) -> None:
    """Asking changes nothing (`observe` may): asked twice, it says the same, and the run comes out as without that."""
    twice = run(subject.guarded_in(world, FullWatch()))
    same(run(subject.in_world(world)), twice, "asking once and asking twice")


def repeatable(subject: Subject, world: World) -> None:
    """Same world, same result (law 6)."""
    same(run(subject.in_world(world)), run(subject.in_world(world)), "two runs of one world")


def own_state(subject: Subject, world: World) -> None:
    """What one instance learns, another does not know: nothing is kept in the class."""
    before = _of_class(subject.cls)
    first = run(subject.in_world(world))
    run(subject.in_world(replace(world, rows=world.rows[::2])))
    after = _of_class(subject.cls)
    changed = [name for name in after if name not in before or after[name] != before[name]]
    assert not changed, f"the class keeps state of a run: {', '.join(changed)}"
    same(first, run(subject.in_world(world)), "a run before and after another")


def _of_class(cls: type[Any]) -> dict[str, object]:
    """What stands in a class and its bases, copied."""
    return {
        f"{each.__name__}.{name}": frozen(value)
        for each in cls.__mro__
        if each is not object
        for name, value in vars(each).items()
        if not name.startswith(("__", "_abc"))
    }


def frozen(value: Any) -> object:
    """A copy of containers, to see later whether they have changed; other values are themselves."""
    if isinstance(value, Mapping):
        return tuple((key, frozen(each)) for key, each in value.items())
    if isinstance(value, list | tuple | deque):
        return tuple(frozen(each) for each in value)
    return frozenset(value) if isinstance(value, set) else value


def sees_no_truth(subject: Subject, world: World) -> None:
    """A longer answer changes nothing before the shorter one would have ended (law 8)."""
    one = run(subject.in_world(world))
    for row in range(0, len(world.rows), 5):
        until_ns = one.columns.end_ns[row]
        if until_ns == NEVER:
            continue
        longer = replace(world.rows[row], stop_after=world.rows[row].stop_after + 5)
        other = run(subject.in_world(replace(world, rows=(*world.rows[:row], longer, *world.rows[row + 1 :]))))
        assert _tokens_before(one, until_ns) == _tokens_before(other, until_ns), (
            f"what happens before {until_ns} ns depends on how long the answer of r{row} will turn out to be"
        )


def _tokens_before(one: Run, until_ns: int) -> list[list[int]]:
    return [[t for t in one.token_times_ns(row) if t < until_ns] for row in range(len(one.world.rows))]


def steady(subject: Subject, world: World) -> None:
    """`steady_steps` promises no more than is true: planning every step by itself changes nothing (law 12)."""
    same(run(subject.in_world(world)), run(subject.in_world(world), max_stretch=1), "steps in stretches and one by one")


def laws(subject: Subject, world: World) -> None:
    """Laws 1, 2 and 4 after every plan; times never go back (law 3) and are in order (law 5)."""
    one = run(subject.in_world(world))
    ends = list(one.log.steps.ends_ns)
    assert ends == sorted(set(ends)), "law 3: a step ends when the one before did, or earlier"
    for row, given in enumerate(world.rows):
        admitted, end, tokens = one.columns.admitted_ns[row], one.columns.end_ns[row], one.token_times_ns(row)
        times = [time for time in (given.arrival_ns, admitted, *tokens, end) if time != NEVER]
        assert times == sorted(times), f"law 5: times of r{row} are out of order: {times}"
    if one.outcome.stalled is None and one.outcome.stopped is None:
        assert all(request.state in TERMINAL for request in one.log.offered), "law 1: somebody never ends"


def within_limit(subject: Subject, world: World) -> None:
    """No step is larger than the budget (law 10); a refund undoes what was spent; a copy is a thing of its own."""
    one = run(subject.in_world(world))
    budget = one.core.budget
    limit = getattr(budget, "max_tokens", UNLIMITED)
    if limit == budget.limit:
        assert one.log.most_tokens <= limit, f"a step of {one.log.most_tokens} tokens, the budget is {limit}"
    core = EngineCore(subject.in_world(world).spec)
    for number, given in enumerate(world.rows):
        core.submit(Request(f"r{number}", prompt_tokens=given.prompt, max_tokens=9), stop_after=9)
    for given in world.rows:
        meter = budget.open(core)
        granted = meter.grant(given.prompt, 0, decode=False, admitting=False)
        if granted:
            meter.copy().spend(granted, 0, decode=False)
            again = meter.grant(given.prompt, 0, decode=False, admitting=False)
            assert again == granted, f"spending on a copy changes the meter: {granted}, then {again} granted"
            meter.spend(granted, 0, decode=False)
            meter.refund(granted, 0, decode=False)
            again = meter.grant(given.prompt, 0, decode=False, admitting=False)
            assert again == granted, f"after spending {granted} and a refund, {again} are granted"


STREAM = 400
"""More urgent requests, one a second, each of which takes two."""


def starves_nobody(subject: Subject, world: World) -> None:
    """Where it claims to (`prevents_starvation`): the least urgent gets in although more urgent ones never stop."""
    if not getattr(subject.make(), "prevents_starvation", False):
        return
    second_ns = round(1e9)
    urgent = [Row(arrival_ns=at * second_ns, prompt=8, max_tokens=2, stop_after=2) for at in range(STREAM)]
    least = Row(arrival_ns=second_ns, prompt=40, max_tokens=2, stop_after=2, priority=9)
    spec = Reference(slots=1, num_blocks=100).spec(UNKNOWN_HARDWARE)
    crowd = World(spec, (urgent[0], least, *urgent[1:]), EvenCost(second_ns), LIMITS)
    one = run(subject.in_world(crowd))
    admitted = one.columns.admitted_ns[1]
    assert NEVER < admitted < STREAM * second_ns, "the least urgent does not get in while more urgent ones arrive"


def same(one: Run, other: Run, what: str) -> None:
    facts, others = one.facts(), other.facts()
    for name, value in facts.items():
        assert value == others[name], f"{what} differ in {name}: {value} and {others[name]}"


CHECKS: dict[str, Check] = {
    "contract": contract,
    "pure": pure,
    "repeatable": repeatable,
    "own_state": own_state,
    "sees_no_truth": sees_no_truth,
    "steady": steady,
    "laws": laws,
    "within_limit": within_limit,
    "starves_nobody": starves_nobody,
}


NEEDS_NO_WORLD = frozenset({"starves_nobody"})
"""Checks that make their own world: once is enough."""


def checks_of(kind: str) -> Iterator[str]:
    """Names of the checks that a policy of this kind goes through."""
    return (name for name in CHECKS if name != "within_limit" or kind == "budget")
