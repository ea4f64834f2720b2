"""The sentences that a comparison begins with, in fixed wording: what came out, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sim.results.comparison.capacity import Capacity, capacities
from sim.results.comparison.comparison import Comparison, Entry, Place
from sim.results.comparison.replications import Difference
from sim.results.comparison.words import COLUMNS, Column, interval, signed
from sim.results.verdict import RunState
from sim.results.wording import number, visible

ONE_RUN = "one deterministic run each: no interval"
FEWEST_TO_ASK_FOR = 30
"""Replications that a sentence suggests where there were too few to tell; three times as many, where that is more."""


MOST_FOR_TAILS = 3
"""Variants that get sentences on more than one metric."""


@dataclass(frozen=True, slots=True)
class Headline:
    """A metric that gets sentences of its own: what it is called in them, and how it is shown."""

    column: Column
    words: str


def headlines(comparison: Comparison) -> list[Headline]:
    """The first alone where there are many variants: tables have the others."""
    by_metric = {column.metric: column for column in COLUMNS}
    first = (
        Headline(by_metric["goodput_per_s"], "goodput")
        if comparison.has_slo
        else Headline(by_metric["output_tokens_per_s"], "output")
    )
    tails = [Headline(by_metric["p99_ttft_s"], "TTFT P99"), Headline(by_metric["p99_tpot_s"], "TPOT P99")]
    return [first, *(tails if len(comparison.variants) <= MOST_FOR_TAILS else [])]


def verdict_lines(comparison: Comparison) -> list[str]:
    lines = []
    if comparison.num_missing:
        done = len(comparison.cells)
        lines.append(f"PARTIAL: {done:,} of {len(comparison.keys):,} runs done (Ctrl-C); the others are left out")
    for trace in dict.fromkeys(place.trace for place in comparison.places):
        lines += _of_trace(comparison, trace)
    return [visible(line) for line in lines]


def _of_trace(comparison: Comparison, trace: str) -> list[str]:
    places = [place for place in comparison.places if place.trace == trace]
    prefix = f"{trace}: " if len({place.trace for place in comparison.places}) > 1 else ""
    lines = _not_stable(comparison, places)
    if len(places) > 1 and comparison.has_slo:
        lines += _capacity_lines(comparison, trace)
    told = telling_place(comparison, places)
    if told is not None:
        at = f"at {rate_words(comparison, told)}: " if len(places) > 1 else ""
        for headline in headlines(comparison):
            for variant in comparison.variants[1:]:
                line = difference_line(comparison, told, variant, headline)
                lines += [at + line] if line else []
    return [prefix + line for line in lines]


def rate_words(comparison: Comparison, place: Place) -> str:
    """17.5 req/s; the scale where all requests come at once."""
    offered = comparison.offered_per_s(place)
    return f"{number(offered)} req/s" if offered is not None else f"rate x{place.rate_scale:g}"


def telling_place(comparison: Comparison, places: Sequence[Place]) -> Place | None:
    """Where latencies of two variants or more mean something, at the highest load; None: nowhere."""

    def comparable(place: Place) -> int:
        base = comparison.entry(place, comparison.base)
        if base is None or base.state is not RunState.STABLE:
            return 0
        return sum(entry.state is RunState.STABLE for entry in comparison.entries(place))

    telling = [place for place in places if comparable(place) > 1]
    return max(telling, key=lambda place: place.rate_scale, default=None)


# -- no steady state


def _not_stable(comparison: Comparison, places: Sequence[Place]) -> list[str]:
    """One sentence for all variants that lack a steady state at the same rates: `UNSTABLE at 35 req/s: a, b: ...`."""
    by_variant: dict[tuple[str, RunState], list[Place]] = {}
    for place in places:
        for entry in comparison.entries(place):
            if entry.state is not RunState.STABLE:
                by_variant.setdefault((entry.variant, entry.state), []).append(place)
    groups: dict[tuple[RunState, tuple[Place, ...]], list[str]] = {}
    for (variant, state), where in by_variant.items():
        groups.setdefault((state, tuple(where)), []).append(variant)
    return [_state_line(comparison, state, where, variants) for (state, where), variants in groups.items()]


def _state_line(comparison: Comparison, state: RunState, where: Sequence[Place], variants: Sequence[str]) -> str:
    """With what was seen of the first variant at the first rate."""
    entries = [entry for entry in (comparison.entry(where[0], each) for each in variants) if entry is not None]
    names = ", ".join(_name_and_share(entry) for entry in entries)
    line = next(line for cell in entries[0].cells.values() if cell.state is state for line in cell.lines)
    rest = [variants[0]] if len(variants) > 1 else []
    rest += [f"at {rate_words(comparison, where[0])}"] if len(where) > 1 else []
    rates = ", ".join(rate_words(comparison, place) for place in where)
    of = f" ({', '.join(rest)})" if rest else ""
    return f"{state.value} at {rates}: {names}: {line.partition(': ')[2]}{of}"


def _name_and_share(entry: Entry) -> str:
    """`static-batch`, `static-batch (3 of 10 seeds)`"""
    in_it = sum(cell.state is entry.state for cell in entry.cells.values())
    return entry.variant if in_it == len(entry.cells) else f"{entry.variant} ({in_it} of {len(entry.cells)} seeds)"


# -- capacity


def _capacity_lines(comparison: Comparison, trace: str) -> list[str]:
    found = capacities(comparison, trace)
    return [
        capacity_line(comparison, variant, found[variant], found.get(comparison.base))
        for variant in comparison.variants
        if variant in found
    ]


def capacity_line(comparison: Comparison, variant: str, capacity: Capacity, base: Capacity | None) -> str:
    if capacity.at_every_rate:
        return f"{variant} holds the SLO at every rate tried (highest {number(capacity.highest)}): limit not found"
    if capacity.mean is None:
        return f"{variant} holds the SLO at no rate tried (lowest {number(capacity.lowest)})"
    line = f"{variant} holds the SLO up to {number(capacity.mean)} req/s"
    if base is None or base.mean is None or base.at_every_rate or variant == comparison.base:
        return line
    line += f", {comparison.base} up to {number(base.mean)}: "
    found = capacity.versus(base)
    if found is None or found.ratio is None:
        return line + "not in all replications"
    if found.n == 1:
        return f"{line}{'the same' if found.ratio == 0 else signed(found.ratio)}, {ONE_RUN}"
    if found.low == found.high == 0:
        return f"{line}the same in all {found.n} replications"
    if found.shown is False:
        return f"{line}no difference shown {interval(found)}, {found.n} replications"
    return f"{line}difference {signed(found.ratio)} {interval(found)}, {found.n} replications"


# -- differences


def difference_line(comparison: Comparison, place: Place, variant: str, headline: Headline) -> str | None:
    """One sentence on a metric of a variant and the base; None where there is nothing to compare."""
    found = comparison.difference(place, variant, headline.column.metric)
    if found is None:
        return None
    values = _values(comparison, variant, headline, found)
    if found.ratio is None:
        return f"{values}: no percentage of 0"
    if found.n == 1:
        return f"{values} ({signed(found.ratio)}), {ONE_RUN}"
    replications = f"{found.n} replications"
    if found.shown:
        return f"{values}: difference {signed(found.ratio)} {interval(found)}, {replications}"
    head = f"between {variant} and {comparison.base} in {headline.words}"
    if found.low == found.high == 0:
        return f"no difference {head}: the same in all {replications}"
    if found.small:
        return f"no difference shown {head}: {signed(found.ratio)} {interval(found)}, {replications}"
    assert found.low is not None
    assert found.high is not None
    wide = f"±{50 * (found.high - found.low):.0f} %"
    return f"cannot tell {head} (interval {wide}); more replications: {_more(comparison, found.n)}"


def _values(comparison: Comparison, variant: str, headline: Headline, found: Difference) -> str:
    """goodput: B 2.33, A 2.16 req/s"""
    column = headline.column
    value, base = (number(each * column.per_unit) for each in (found.value, found.base))
    return f"{headline.words}: {variant} {value}, {comparison.base} {base} {column.unit}"


def _more(comparison: Comparison, n: int) -> str:
    many = max(FEWEST_TO_ASK_FOR, 3 * n)
    return (
        f"--seeds {many}" if comparison.plan.blocks is None else "a longer trace (or --blocks of fewer, longer pieces)"
    )
