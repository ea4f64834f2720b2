"""Which state a request is in and what may happen to it next: every transition of the simulator is in this table.

A request ends exactly once, because no terminal state has a row.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    QUEUED = "queued"
    RUNNING = "running"
    """Admitted: prefilling, then decoding. Engines such as vLLM V1 draw no line between the two."""
    SWAPPED = "swapped"
    """Its KV is on the host, and it waits for room to come back."""
    FINISHED = "finished"
    REJECTED = "rejected"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    FAILED = "failed"
    """Out of memory, or lost by a defect of the engine."""

    # Members are singletons; hashing by identity is several times quicker than Enum's own hash of the name.
    __hash__ = object.__hash__


class Event(Enum):
    ADMIT = "admit"
    PREEMPT = "preempt"
    SWAP_OUT = "swap_out"
    SWAP_IN = "swap_in"
    FINISH = "finish"
    REJECT = "reject"
    TIME_OUT = "time_out"
    CANCEL = "cancel"
    FAIL = "fail"

    __hash__ = object.__hash__


TRANSITIONS: dict[State, dict[Event, State]] = {
    State.QUEUED: {
        Event.ADMIT: State.RUNNING,
        # A preempted request whose last token was still in flight ends where it waits (asynchronous scheduling).
        Event.FINISH: State.FINISHED,
        Event.REJECT: State.REJECTED,
        Event.TIME_OUT: State.TIMED_OUT,
        Event.CANCEL: State.CANCELLED,
        Event.FAIL: State.FAILED,
    },
    State.RUNNING: {
        Event.PREEMPT: State.QUEUED,
        Event.SWAP_OUT: State.SWAPPED,
        Event.FINISH: State.FINISHED,
        Event.TIME_OUT: State.TIMED_OUT,
        Event.CANCEL: State.CANCELLED,
        Event.FAIL: State.FAILED,
    },
    State.SWAPPED: {
        Event.SWAP_IN: State.RUNNING,
        Event.FINISH: State.FINISHED,  # as for queued
        Event.TIME_OUT: State.TIMED_OUT,
        Event.CANCEL: State.CANCELLED,
        Event.FAIL: State.FAILED,
    },
}

TERMINAL = frozenset(State) - frozenset(TRANSITIONS)


class IllegalTransition(Exception):
    """Something happened to a request that cannot happen in its state: a bug, never bad input."""


def after(state: State, event: Event, request_id: str) -> State:
    """The state that follows. Raises IllegalTransition, naming the request, and changes nothing."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise IllegalTransition(f"request {request_id}: {state.name} cannot take {event.name}") from None


def diagram() -> str:
    """The table as a Mermaid state diagram (the README's is made by this)."""
    lines = ["stateDiagram-v2", "    [*] --> queued"]
    for state, row in TRANSITIONS.items():
        lines += [f"    {state.value} --> {to.value}: {event.value}" for event, to in row.items()]
    lines += [f"    {state.value} --> [*]" for state in State if state in TERMINAL]
    return "\n".join(lines)
