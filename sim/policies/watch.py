"""What must be the same after a policy was asked something as it was before: at a glance, or in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.core.request import Request

if TYPE_CHECKING:
    from sim.policies.protocols import EngineView

State = dict[str, object]
"""What is looked at, by name."""

_WATCHED = tuple(name for name in Request.__slots__ if name not in ("content", "table", "cohort"))


class Watch:
    """A glance: the engine's sums and the request that the question is about. Costs the same in any engine."""

    asks_twice = False

    def state(self, engine: EngineView | None, request: Request | None) -> State:
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
    """For tests: everybody, in order; and every question is asked twice."""

    asks_twice = True

    def state(self, engine: EngineView | None, request: Request | None) -> State:
        state = super().state(engine, request)
        if engine is not None:
            for each in (*engine.waiting, *engine.running):
                state[f"request {each.id}"] = of_request(each)
            state["the waiting requests"] = tuple(engine.waiting)
            state["the running requests"] = tuple(engine.running), tuple(engine.prefilling)
        return state


GLANCE = Watch()


def of_request(request: Request) -> tuple[object, ...]:
    return tuple([getattr(request, name) for name in _WATCHED])
