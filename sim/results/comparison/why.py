"""Why variants differ: what is most different inside, in words. One table of clues, from metrics that explain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sim.results.blocked import WAITED_FOR
from sim.results.comparison.comparison import Comparison, Entry, Place
from sim.results.comparison.verdicts import rate_words, telling_place
from sim.results.summary import BLOCKER_WORDS
from sim.results.wording import number, percent, visible

MOST_CLUES = 3
LEAST_SCORE = 0.05
"""A clue that is less different explains nothing."""

Weigh = Callable[[float, float, float], float]


@dataclass(frozen=True, slots=True)
class Clue:
    """Something that may explain a difference: how it is said, how its value is written, how much it weighs."""

    of: Callable[[Entry], float | None]
    words: str
    written: Callable[[float], str]
    weigh: Weigh
    """From its value, the base's and the number of requests, a score of 0 (the same) to 1."""


def _share(value: float, before: float, requests: float) -> float:
    return abs(value - before)


def _per_request(value: float, before: float, requests: float) -> float:
    return min(1.0, abs(value - before) / max(1.0, requests))


def _size(value: float, before: float, requests: float) -> float:
    most = max(abs(value), abs(before))
    return 1 - min(abs(value), abs(before)) / most if most else 0.0


def _metric(name: str) -> Callable[[Entry], float | None]:
    """Of the first run; what is asked here means something without a steady state, too."""
    return lambda entry: entry.first.rows[name].value


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _ms(seconds: float) -> str:
    return f"{number(1000 * seconds)} ms"


CLUES = (
    Clue(_metric("num_preemptions"), "preemptions", _count, _per_request),
    Clue(_metric("recomputed_ratio"), "of all tokens computed again", percent, _share),
    Clue(_metric("num_rejected"), "rejected", _count, _per_request),
    Clue(_metric("num_timed_out"), "timed out", _count, _per_request),
    Clue(_metric("num_failed"), "failed", _count, _per_request),
    Clue(_metric("prefix_hit_ratio"), "of prompt tokens found cached", percent, _share),
    Clue(_metric("mean_batch_requests_by_step"), "requests in a mean step", number, _size),
    Clue(_metric("mean_prefill_step_s"), "for a mean step with prefill", _ms, _size),
    Clue(_metric("mean_decode_step_s"), "for a mean step of decodes", _ms, _size),
    Clue(_metric("mean_kv_used_ratio"), "of KV blocks used on average", percent, _share),
)


def why_lines(comparison: Comparison) -> list[str]:
    """`why B: 1.6 ..., A 4.0; ...` for each variant that differs, at the place that says most."""
    lines = []
    traces = list(dict.fromkeys(place.trace for place in comparison.places))
    for trace in traces:
        places = [place for place in comparison.places if place.trace == trace]
        place = telling_place(comparison, places) or places[-1]
        prefix = f"{trace}, " if len(traces) > 1 else ""
        at = f" ({prefix}{rate_words(comparison, place)})" if len(comparison.places) > 1 else ""
        for variant in comparison.variants[1:]:
            clues = clues_at(comparison, place, variant)
            if clues:
                lines.append(visible(f"why {variant}{at}: {'; '.join(clues)}"))
    return lines


def clues_at(comparison: Comparison, place: Place, variant: str) -> list[str]:
    """The greatest differences first: `412 preemptions, A 0`."""
    base, other = comparison.entry(place, comparison.base), comparison.entry(place, variant)
    if base is None or other is None:
        return []
    requests = base.first.rows["num_offered"].value or 0.0
    found = []
    for clue in (*CLUES, *_waits(base, other)):
        value, before = clue.of(other), clue.of(base)
        if value is None or before is None:
            continue
        score = clue.weigh(value, before, requests)
        if score >= LEAST_SCORE:
            found.append((score, f"{clue.written(value)} {clue.words}, {comparison.base} {clue.written(before)}"))
    found.sort(key=lambda each: -each[0])
    return [text for _, text in found[:MOST_CLUES]]


def _waits(base: Entry, other: Entry) -> list[Clue]:
    """What the slowest requests waited for much more than the base's do: one blocker, for the shares add up to 1."""
    before, after = base.first.slowest_waited, other.first.slowest_waited
    if not before or not after:
        return []
    blocker = max(WAITED_FOR, key=lambda each: after.get(each.value, 0.0) - before.get(each.value, 0.0))
    words = f"of what the slowest 1 % requests (TTFT) waited was for {BLOCKER_WORDS[blocker]}"
    return [Clue(lambda entry: entry.first.slowest_waited.get(blocker.value, 0.0), words, percent, _share)]
