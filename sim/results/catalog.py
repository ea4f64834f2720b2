"""Every metric of a single run, named once: name, unit, what it is of, which way is better, and how it comes about.

Definitions: STYLE's glossary and DESIGN section 7. A spread's name gets the statistic in front: `p99_ttft_s`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sim.core.lifecycle import State
from sim.results.arrays import BoolArray, FloatArray, IntArray, same, view
from sim.results.blocked import WAITED_FOR
from sim.results.columns import NEVER
from sim.results.measure import NS_PER_S, Measured, targets
from sim.results.percentiles import Sample
from sim.results.steps import Plans

Better = Literal["lower", "higher"]
Population = Literal["offered", "finished"]


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a metric has no value."""

    why: str


@dataclass(frozen=True, slots=True)
class Single:
    """A metric of one number."""

    name: str
    unit: str
    better: Better | None
    population: Population | None
    """None: the engines' steps."""
    compute: Callable[[Measured], float | Missing]


@dataclass(frozen=True, slots=True)
class Spread:
    """A metric that each request (or gap, or step) has: mean, percentiles and maximum."""

    name: str
    unit: str
    better: Better | None
    population: Population | None
    sample: Callable[[Measured], Sample]
    if_none: str
    """What to say when nobody has it."""
    latency: bool = True
    """Without a meaning when there is no steady state."""


# -- building blocks


def _ratio(part: float, whole: float, why: str) -> float | Missing:
    return part / whole if whole else Missing(why)


def _per_s(value: float, m: Measured) -> float | Missing:
    return _ratio(value, m.duration_s, "the run takes no time")


def _arrival_rate(m: Measured) -> float | Missing:
    """Of the arrivals themselves: a backlog that drains long after the last of them does not make it smaller."""
    arrivals_ns = m.result.trace.arrival_ns[m.arrived][m.result.initial_rows :]
    if len(arrivals_ns) < 2 or arrivals_ns[-1] == arrivals_ns[0]:
        return Missing("all arrive at once")
    return float((len(arrivals_ns) - 1) / (int(arrivals_ns[-1] - arrivals_ns[0]) / NS_PER_S))


def _of(time_ns: IntArray | FloatArray, mask: BoolArray, infinite: int = 0) -> Sample:
    """A sample in seconds of those who are in the mask and have the time; the others may count as infinite."""
    known = mask & ~np.isnan(time_ns) & (time_ns != NEVER)
    return Sample(time_ns[known] / NS_PER_S, infinite=infinite)


def _offered(time_ns: IntArray | FloatArray, m: Measured) -> Sample:
    """Who was not served has waited for ever."""
    return _of(time_ns, m.served, infinite=m.num_offered - int(m.served.sum()))


def _goodput(value: Callable[[Measured], float], m: Measured) -> float | Missing:
    return _per_s(value(m), m) if targets(m.result.slo) else Missing("no SLO given")


def _attained(m: Measured, whole: float, which: str | None = None) -> float | Missing:
    if which is None:
        given, met = bool(targets(m.result.slo)), m.slo_met
    else:
        given, met = which in m.slo_each, m.slo_each.get(which, m.slo_met)
    return _ratio(int(met.sum()), whole, "n=0: nothing to compare") if given else Missing("no such SLO given")


def _finished_tokens(m: Measured, column: IntArray) -> int:
    return int(column[m.ended(State.FINISHED)].sum())


def _over_time(m: Measured, of: Callable[[Plans], FloatArray | IntArray], whole: float) -> float | Missing:
    """Mean over the duration of something that each plan has, as a share of `whole`."""
    total = sum(plans.sum_over_time(of(plans)) for plans in m.plans)
    return _ratio(total, whole * m.duration_s, "the run takes no time")


def _blocks(m: Measured) -> int:
    return sum(facts.total_blocks for facts in m.result.engines)


def _per_step(m: Measured, of: Callable[[Plans], FloatArray | IntArray]) -> float | Missing:
    steps = sum(len(plans.step_ns) for plans in m.plans)
    return _ratio(sum(plans.sum_over_steps(of(plans)) for plans in m.plans), steps, "n=0: no step ran")


def _while_busy(m: Measured, of: Callable[[Plans], FloatArray | IntArray]) -> float | Missing:
    return _ratio(sum(p.sum_over_time(of(p)) for p in m.plans), _busy_s(m), "n=0: no step ran")


def _busy_s(m: Measured) -> float:
    return sum(float(plans.lasting_ns.sum()) for plans in m.plans) / NS_PER_S


def _highest_share(m: Measured, column: str) -> float:
    """The highest share of its blocks that any engine had at the beginning of a plan."""
    return max(float(plans.column(column).max(initial=0)) / plans.facts.total_blocks for plans in m.plans)


def _work(plans: Plans) -> FloatArray:
    return plans.decode_work + plans.prefill_work


def _steps(m: Measured, *, prefill: bool | None = None) -> Sample:
    parts = []
    for plans in m.plans:
        mine = slice(None) if prefill is None else np.repeat(plans.has_prefill == prefill, plans.steps)
        parts.append(plans.step_ns[mine])
    return Sample((parts[0] if len(parts) == 1 else np.concatenate(parts)) / NS_PER_S)


def _prefix_hits(m: Measured) -> int:
    return int(view(m.result.requests.hit_tokens).sum() - view(m.result.requests.rehit_tokens).sum())


def _hit_ratio(m: Measured) -> float | Missing:
    if not any(facts.prefix_caching for facts in m.result.engines):
        return Missing("no prefix cache")
    return _ratio(_prefix_hits(m), _admitted_prompts(m), "n=0: nobody was admitted")


def _admitted_prompts(m: Measured) -> int:
    return int(m.result.trace.prompt_tokens[m.admitted].sum())


def _recomputed_tokens(m: Measured) -> int:
    """Lost by preemptions and not found cached again; counts those who never came back too."""
    return int(view(m.result.requests.lost_tokens).sum() - view(m.result.requests.rehit_tokens).sum())


def _swapped_blocks(plans: Plans) -> int:
    """Moved over the host link, both ways together."""
    return int(plans.column("swapped_blocks").sum())


def _computed_tokens(m: Measured) -> float:
    return sum(p.sum_over_steps(p.column("decode_requests") + p.column("prefill_tokens")) for p in m.plans)


def _gaps(m: Measured, *, zeros: int) -> Sample:
    gaps = m.gaps.with_zeros(zeros)
    return Sample(gaps.gap_ns / NS_PER_S, gaps.count)


def _requeue(m: Measured) -> Sample:
    preempted = ~same(view(m.result.requests.preemptions), 0)
    return _of(view(m.result.requests.requeue_ns), m.served & preempted)


# -- the table


def _end(state: State, better: Better | None) -> Single:
    return Single(f"num_{state.value}", "requests", better, "offered", lambda m: m.ends[state])


def _blocked(place: int) -> Single:
    """Seconds that requests waited for a blocker before their first admission, or in vain."""
    name = f"queue_{WAITED_FOR[place].value}_s"
    return Single(name, "s", "lower", "offered", lambda m: float(m.total_blocked_ns[place]) / NS_PER_S)


SINGLES: tuple[Single, ...] = (
    Single("num_offered", "requests", None, "offered", lambda m: m.num_offered),
    _end(State.FINISHED, "higher"),
    _end(State.REJECTED, "lower"),
    _end(State.TIMED_OUT, "lower"),
    _end(State.CANCELLED, "lower"),
    _end(State.FAILED, "lower"),
    _end(State.QUEUED, None),
    _end(State.RUNNING, None),
    _end(State.SWAPPED, None),
    Single("admission_ratio", "ratio", "higher", "offered",
           lambda m: _ratio(int(m.admitted.sum()), m.num_offered, "n=0: nothing was offered")),
    Single("duration_s", "s", None, "offered", lambda m: m.duration_s),
    Single("offered_per_s", "requests/s", None, "offered", lambda m: _arrival_rate(m)),
    Single("finished_per_s", "requests/s", "higher", "finished", lambda m: _per_s(m.ends[State.FINISHED], m)),
    Single("input_tokens_per_s", "tokens/s", "higher", "finished",
           lambda m: _per_s(_finished_tokens(m, m.result.trace.prompt_tokens), m)),
    Single("output_tokens_per_s", "tokens/s", "higher", "finished",
           lambda m: _per_s(_finished_tokens(m, m.output_tokens), m)),
    Single("delivered_tokens_per_s", "tokens/s", "higher", "offered",
           lambda m: _per_s(int(m.output_tokens[m.arrived].sum()), m)),
    # SLOs: of all that came, of what finished, and each target by itself
    Single("goodput_per_s", "requests/s", "higher", "offered", lambda m: _goodput(lambda m: int(m.slo_met.sum()), m)),
    Single("goodput_tokens_per_s", "tokens/s", "higher", "offered",
           lambda m: _goodput(lambda m: int(m.output_tokens[m.slo_met].sum()), m)),
    Single("slo_met_offered_ratio", "ratio", "higher", "offered", lambda m: _attained(m, m.num_offered)),
    Single("slo_met_finished_ratio", "ratio", "higher", "finished", lambda m: _attained(m, m.ends[State.FINISHED])),
    Single("slo_ttft_met_offered_ratio", "ratio", "higher", "offered", lambda m: _attained(m, m.num_offered, "ttft_s")),
    Single("slo_tpot_met_offered_ratio", "ratio", "higher", "offered", lambda m: _attained(m, m.num_offered, "tpot_s")),
    Single("slo_e2e_met_offered_ratio", "ratio", "higher", "offered", lambda m: _attained(m, m.num_offered, "e2e_s")),
    # what waiting was for, and what preemption cost
    *(_blocked(place) for place in range(len(WAITED_FOR))),
    Single("num_preemptions", "preemptions", "lower", "offered",
           lambda m: int(view(m.result.requests.preemptions).sum())),
    Single("num_preempted_requests", "requests", "lower", "offered",
           lambda m: int(np.count_nonzero(view(m.result.requests.preemptions)))),
    Single("lost_tokens", "tokens", "lower", "offered", lambda m: int(view(m.result.requests.lost_tokens).sum())),
    Single("rehit_tokens", "tokens", None, "offered", lambda m: int(view(m.result.requests.rehit_tokens).sum())),
    Single("recomputed_tokens", "tokens", "lower", "offered", _recomputed_tokens),
    Single("recomputed_ratio", "ratio", "lower", "offered",
           lambda m: _ratio(_recomputed_tokens(m), _computed_tokens(m), "n=0: no step ran")),
    Single("num_swaps", "preemptions", "lower", "offered",
           lambda m: sum(log.journal.num_swap_outs() for log in m.result.logs)),
    Single("swapped_blocks", "blocks", "lower", None,
           lambda m: sum(_swapped_blocks(plans) for plans in m.plans)),
    Single("swapped_bytes", "bytes", "lower", None,
           lambda m: sum(_swapped_blocks(plans) * plans.facts.host_block_bytes for plans in m.plans)),
    # the pool
    Single("mean_kv_used_ratio", "ratio", None, None, lambda m: _over_time(m, lambda p: p.used_blocks, _blocks(m))),
    Single("max_kv_used_ratio", "ratio", None, None,
           lambda m: max(facts.peak_used_blocks / facts.total_blocks for facts in m.result.engines)),
    Single("mean_kv_cached_ratio", "ratio", None, None,
           lambda m: _over_time(m, lambda p: p.cached_blocks, _blocks(m))),
    Single("mean_kv_reserved_ratio", "ratio", None, None,
           lambda m: _over_time(m, lambda p: p.column("reserved_blocks"), _blocks(m))),
    Single("max_kv_reserved_ratio", "ratio", None, None, lambda m: _highest_share(m, "reserved_blocks")),
    Single("prefix_hit_tokens", "tokens", "higher", "offered", _prefix_hits),
    Single("prefix_hit_ratio", "ratio", "higher", "offered", _hit_ratio),
    Single("evicted_blocks", "blocks", "lower", None, lambda m: sum(f.evicted_blocks for f in m.result.engines)),
    # steps
    Single("num_steps", "steps", None, None, lambda m: sum(len(plans.step_ns) for plans in m.plans)),
    Single("busy_ratio", "ratio", None, None,
           lambda m: _ratio(_busy_s(m), m.duration_s * len(m.plans), "the run takes no time")),
    Single("mean_batch_requests_by_step", "requests", None, None, lambda m: _per_step(m, lambda p: p.requests)),
    Single("mean_batch_requests_by_time", "requests", None, None, lambda m: _while_busy(m, lambda p: p.requests)),
    Single("max_batch_requests", "requests", None, None,
           lambda m: int(max((plans.requests.max(initial=0) for plans in m.plans), default=0))),
    Single("mean_work_by_step", "token-work", None, None, lambda m: _per_step(m, _work)),
    Single("mean_work_by_time", "token-work", None, None, lambda m: _while_busy(m, _work)),
    Single("prefill_work_ratio", "ratio", None, None,
           lambda m: _ratio(sum(p.sum_over_steps(p.prefill_work) for p in m.plans),
                            sum(p.sum_over_steps(_work(p)) for p in m.plans), "n=0: no step ran")),
    Single("num_starved_steps", "steps", "lower", None,
           lambda m: sum(int(plans.steps[plans.starved].sum()) for plans in m.plans)),
    Single("starved_s", "s", "lower", None,
           lambda m: sum(float(plans.lasting_ns[plans.starved].sum()) for plans in m.plans) / NS_PER_S),
    Single("num_deferred_steps", "steps", "lower", None,
           lambda m: sum(sum(log.deferrals.values()) for log in m.result.logs)),
)  # fmt: skip

NOBODY = "no request finished"
ONE_TOKEN = "all answers have one token"

SPREADS: tuple[Spread, ...] = (
    Spread("ttft_s", "s", "lower", "finished", lambda m: _of(m.ttft_ns, m.served), NOBODY),
    Spread("tpot_s", "s", "lower", "finished", lambda m: _of(m.tpot_ns, m.served), ONE_TOKEN),
    Spread("itl_event_s", "s", "lower", "finished", lambda m: _gaps(m, zeros=0), ONE_TOKEN),
    Spread("itl_token_s", "s", "lower", "finished", lambda m: _gaps(m, zeros=m.joined_tokens), ONE_TOKEN),
    Spread("longest_gap_s", "s", "lower", "finished", lambda m: _of(m.tokens.max_gap_ns, m.served), ONE_TOKEN),
    Spread("e2e_s", "s", "lower", "finished", lambda m: _of(m.e2e_ns, m.served), NOBODY),
    Spread("e2e_s_per_token", "s/token", "lower", "finished", lambda m: _of(m.normalised_ns, m.served), NOBODY),
    Spread("queue_s", "s", "lower", "finished", lambda m: _of(m.queue_ns, m.served), NOBODY),
    Spread("requeue_s", "s", "lower", "finished", _requeue, "nobody was preempted"),
    Spread("offered_ttft_s", "s", "lower", "offered", lambda m: _offered(m.ttft_ns, m), "nothing was offered"),
    Spread("offered_e2e_s", "s", "lower", "offered", lambda m: _offered(m.e2e_ns, m), "nothing was offered"),
    Spread("step_s", "s", None, None, _steps, "no step ran", latency=False),
    Spread("decode_step_s", "s", None, None, lambda m: _steps(m, prefill=False), "no such step", latency=False),
    Spread("prefill_step_s", "s", None, None, lambda m: _steps(m, prefill=True), "no such step", latency=False),
)
