"""What a report says first: is the run whole, is there a steady state, and what should a reader be warned of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sim.core.lifecycle import State
from sim.results.measure import NS_PER_S, Measured
from sim.results.stability import FLOOR_REQUESTS, MIN_ARRIVALS, THRESHOLD_RATIO, Trend, trend
from sim.results.wording import count, number, percent

MOST_LOST_RATIO = 0.01
"""Of the offered: beyond it the first lines say so, whatever the backlog does."""


class RunState(Enum):
    STABLE = "STABLE"
    UNSTABLE = "UNSTABLE"
    """The backlog grows as long as requests arrive: latencies depend on how long the trace is."""
    PARTIAL = "PARTIAL"
    """Stopped before its end."""
    NOTHING_SERVED = "NOTHING SERVED"
    """Requests came, and not one of them finished."""
    STALLED = "STALLED"
    """An engine could not go on although requests were left."""


@dataclass(frozen=True, slots=True)
class Verdict:
    state: RunState
    """The gravest of what is so."""
    trend: Trend
    partial: bool
    """Requests are left, or never came."""
    lines: tuple[str, ...]
    """One sentence for each thing that is not as it should be, gravest first."""


def verdict(measured: Measured) -> Verdict:
    arrived = measured.arrived
    seen = measured.waiting_seen[arrived]
    backlog = trend(measured.result.trace.arrival_ns[arrived], seen)
    outcome = measured.result.outcome
    lines = []
    state = RunState.STABLE
    if backlog.unstable:
        state = RunState.UNSTABLE
        lines.append(_unstable(backlog))
    if len(seen) and not measured.ends[State.FINISHED]:
        state = RunState.NOTHING_SERVED
        lines.insert(0, f"NOTHING SERVED: none of {count(len(seen), 'request')} finished")
    if outcome.stopped is not None:
        state = RunState.PARTIAL
        lines.insert(0, _partial(measured, outcome.stopped))
    if outcome.stalled is not None:
        state = RunState.STALLED
        lines.insert(0, f"STALLED: {outcome.stalled}")
    lost = sum(measured.ends[state] for state in (State.REJECTED, State.TIMED_OUT, State.FAILED))
    if lost > MOST_LOST_RATIO * len(seen):
        lines.append(f"{percent(lost / len(seen))} of the offered requests were lost (rejected, timed out or failed)")
    if not backlog.enough:
        lines.append(f"{count(len(seen), 'arrival')}: too few to see a trend in the backlog (from {MIN_ARRIVALS})")
    partial = state in (RunState.PARTIAL, RunState.STALLED)
    return Verdict(state, backlog, partial, tuple(lines))


def _unstable(backlog: Trend) -> str:
    return (
        f"UNSTABLE: waiting requests per arrival {number(backlog.first_half)} in the first half, "
        f"{number(backlog.second_half)} in the second (threshold {THRESHOLD_RATIO:g}x, from {FLOOR_REQUESTS:g}); "
        "latencies depend on trace length"
    )


def _partial(measured: Measured, why: str) -> str:
    trace = measured.result.trace
    last_s = int(trace.arrival_ns[-1]) / NS_PER_S if len(trace) else 0.0
    return (
        f"PARTIAL: stopped at {number(measured.result.outcome.end_ns / NS_PER_S)} s of {number(last_s)} s ({why}); "
        f"{measured.num_offered:,} of {len(trace):,} offered; {measured.num_alive:,} still running are not in latencies"
    )
