"""The transition table is the whole truth about states (law 2)."""

from __future__ import annotations

import pytest

from sim.core.engine import EngineCore
from sim.core.lifecycle import TERMINAL, TRANSITIONS, Event, IllegalTransition, State, after, diagram
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE, Reference

LEGAL = {
    (State.QUEUED, Event.ADMIT): State.RUNNING,
    (State.QUEUED, Event.FINISH): State.FINISHED,
    (State.QUEUED, Event.REJECT): State.REJECTED,
    (State.QUEUED, Event.TIME_OUT): State.TIMED_OUT,
    (State.QUEUED, Event.CANCEL): State.CANCELLED,
    (State.QUEUED, Event.FAIL): State.FAILED,
    (State.RUNNING, Event.PREEMPT): State.QUEUED,
    (State.RUNNING, Event.SWAP_OUT): State.SWAPPED,
    (State.RUNNING, Event.FINISH): State.FINISHED,
    (State.RUNNING, Event.TIME_OUT): State.TIMED_OUT,
    (State.RUNNING, Event.CANCEL): State.CANCELLED,
    (State.RUNNING, Event.FAIL): State.FAILED,
    (State.SWAPPED, Event.SWAP_IN): State.RUNNING,
    (State.SWAPPED, Event.FINISH): State.FINISHED,
    (State.SWAPPED, Event.TIME_OUT): State.TIMED_OUT,
    (State.SWAPPED, Event.CANCEL): State.CANCELLED,
    (State.SWAPPED, Event.FAIL): State.FAILED,
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_law_02_every_pair(state: State, event: Event):
    """A pair is legal and leads where it should, or raises with the request, the state and the event in the message."""
    if (state, event) in LEGAL:
        assert after(state, event, "r17") is LEGAL[state, event]
    else:
        with pytest.raises(IllegalTransition, match=f"^request r17: {state.name} cannot take {event.name}"):
            after(state, event, "r17")


def test_law_02_terminal_states_are_final():
    """Finished, rejected, timed out, cancelled and failed take nothing; the other three are not terminal."""
    assert set(State) - TERMINAL == {State.QUEUED, State.RUNNING, State.SWAPPED}
    assert not any(TRANSITIONS.get(state) for state in TERMINAL)


def one_request() -> tuple[EngineCore, Request]:
    core = EngineCore(Reference(block_size=4, num_blocks=8, max_model_len=100).spec(UNKNOWN_HARDWARE))
    return core, Request("r17", prompt_tokens=6, max_tokens=4)


def fields(request: Request) -> dict[str, object]:
    return {name: getattr(request, name) for name in Request.__slots__}


@pytest.mark.parametrize("end", [Event.CANCEL, Event.TIME_OUT, Event.FAIL])
def test_law_02_an_illegal_transition_leaves_the_request_as_it_was(end: Event):
    """What cannot be rejected any more is still the same, and still runs, after somebody has tried."""
    core, request = one_request()
    core.submit(request, stop_after=4)
    plan = core.plan_step()
    assert plan is not None
    before = fields(request)
    with pytest.raises(IllegalTransition):
        request.state = after(request.state, Event.ADMIT, request.id)
    assert fields(request) == before
    core.cancel(request, end)
    assert request.state in TERMINAL
    before = fields(request)
    with pytest.raises(IllegalTransition):
        request.state = after(request.state, end, request.id)
    assert fields(request) == before


def test_diagram_has_every_transition():
    """The README's picture is made from the table: one line for each transition, and the ways in and out."""
    lines = diagram().splitlines()
    arrows = [line for line in lines if ": " in line]
    assert len(arrows) == len(LEGAL)
    for (state, event), to in LEGAL.items():
        assert f"    {state.value} --> {to.value}: {event.value}" in arrows
    assert "    [*] --> queued" in lines
    assert sum(line.endswith("--> [*]") for line in lines) == len(TERMINAL)
