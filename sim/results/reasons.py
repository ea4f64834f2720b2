"""Why things happened, counted: ends, steps that left somebody waiting, preemptions, evictions."""

from __future__ import annotations

from collections import Counter

from sim.results.columns import EngineLog
from sim.results.journal import MODES, NO_ROW
from sim.results.measure import Measured


def reasons(measured: Measured) -> dict[str, dict[str, int]]:
    """What was counted -> reason -> how often, most frequent first. Answers that ended by themselves have no reason."""
    found: dict[str, Counter[str]] = {}
    for row, reason in measured.result.requests.reason.items():
        found.setdefault(measured.state_of(row).value, Counter())[reason] += 1
    for log in measured.result.logs:
        for what, counted in (
            ("deferred_steps", log.deferrals),
            ("preempted", _preemptions(log)),
            ("evicted_blocks", log.evictions),
        ):
            if counted:
                found.setdefault(what, Counter()).update(counted)
    return {what: dict(sorted(found[what].items(), key=lambda item: (-item[1], item[0]))) for what in sorted(found)}


def _preemptions(log: EngineLog) -> Counter[str]:
    """By what became of the KV, and for what it had to go."""
    counts: Counter[str] = Counter()
    _, row, mode, asker, _ = log.journal.preemptions().T
    for kind, which in enumerate(MODES):
        for mask, whom in (
            (asker == NO_ROW, "to make room for the step"),
            (asker == row, "for its own next block"),
            ((asker != NO_ROW) & (asker != row), "for the next block of another"),
        ):
            counts[f"{which.value}, {whom}"] = int(((mode == kind) & mask).sum())
    return +counts
