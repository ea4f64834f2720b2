"""What must be the same after a policy was asked something as it was before: at a glance, or in full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sim.core.request import Request

if TYPE_CHECKING:
    from sim.policies.protocols import EngineView

State = dict[str, object]
"""What is looked at, by name."""

_WATCHED = tuple(name for name in Request.__slots__ if name not in ("content", "table", "cohort"))


class Watch:
    """A glance: the engine's sums and the request that the question is about. Costs the same in any engine."""

    asks_twice = False

    def state(self, engine: EngineView | None, request: Request | None, policy: object) -> State:
        state: State = {} if request is None else {f"request {request.id}": of_request(request)}
        if engine is not None:
            cohort, store = engine.cohort, engine.store
            state["the clock"] = engine.now_ns
            state["the waiting requests"] = len(engine.waiting)
            state["the running requests"] = len(engine.running), len(engine.prefilling)
            state["the decoding requests"] = cohort.size, cohort.step, cohort.context_tokens
            state["the blocks"] = store.free_blocks, store.total_blocks, engine.reserved_blocks
        return state

    def change(self, before: State, after: State) -> str | None:
        """The first thing that is not as it was."""
        changed = next((name for name in before if before[name] != after[name]), None)
        return None if changed is None else f"a change of {changed}"


class FullWatch(Watch):
    """For tests: everybody, in order, and what the policy itself remembers; and every question is asked twice."""

    asks_twice = True

    def state(self, engine: EngineView | None, request: Request | None, policy: object) -> State:
        state = super().state(engine, request, policy)
        if engine is not None:
            for each in (*engine.waiting, *engine.running):
                state[f"request {each.id}"] = of_request(each)
            state["the waiting requests"] = tuple(engine.waiting)
            state["the running requests"] = tuple(engine.running), tuple(engine.prefilling)
        if policy is not None:
            state["what the policy remembers"] = frozen(policy)
        return state


GLANCE = Watch()


def of_request(request: Request) -> tuple[object, ...]:
    return tuple([getattr(request, name) for name in _WATCHED])


def frozen(value: Any, _inside: tuple[int, ...] = ()) -> object:
    """A value that equals another's if both hold the same: containers and objects are taken apart, requests are not."""
    if isinstance(value, str | bytes | int | float | bool | type | Request) or value is None:
        return value
    if id(value) in _inside or hasattr(value, "plan_step"):
        return "itself, or the engine"
    inside = (*_inside, id(value))
    if isinstance(value, Mapping):
        return tuple((key, frozen(each, inside)) for key, each in value.items())
    if isinstance(value, set | frozenset):
        return frozenset(value)
    if isinstance(value, Iterable) and hasattr(value, "__len__"):
        return tuple(frozen(each, inside) for each in value)
    if callable(value):
        return value
    return type(value).__name__, frozen(attributes(value), inside)


def attributes(value: object) -> dict[str, object]:
    """An object's own, by `__dict__` and by slots."""
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    own = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return own | getattr(value, "__dict__", {})
