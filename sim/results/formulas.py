"""What the catalog's metrics are computed with: ratios, rates, means over time and over steps, samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sim.core.lifecycle import State
from sim.results.arrays import BoolArray, FloatArray, IntArray, same, view
from sim.results.columns import NEVER
from sim.results.measure import NS_PER_S, Measured, targets
from sim.results.percentiles import Sample
from sim.results.steps import Plans


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a metric has no value."""

    why: str


def ratio(part: float, whole: float, why: str) -> float | Missing:
    return part / whole if whole else Missing(why)


def per_s(value: float, m: Measured) -> float | Missing:
    return ratio(value, m.duration_s, "the run takes no time")


def arrival_rate(m: Measured) -> float | Missing:
    """Of the arrivals themselves: a backlog that drains long after the last of them does not make it smaller."""
    arrivals_ns = m.result.trace.arrival_ns[m.arrived][m.result.initial_rows :]
    if len(arrivals_ns) < 2 or arrivals_ns[-1] == arrivals_ns[0]:
        return Missing("all arrive at once")
    return float((len(arrivals_ns) - 1) / (int(arrivals_ns[-1] - arrivals_ns[0]) / NS_PER_S))


def times(time_ns: IntArray | FloatArray, mask: BoolArray, infinite: int = 0) -> Sample:
    """A sample in seconds of those who are in the mask and have the time; the others may count as infinite."""
    known = mask & ~np.isnan(time_ns) & (time_ns != NEVER)
    return Sample(time_ns[known] / NS_PER_S, infinite=infinite)


def offered_times(time_ns: IntArray | FloatArray, m: Measured) -> Sample:
    """Who was not served has waited for ever."""
    return times(time_ns, m.served, infinite=m.num_offered - int(m.served.sum()))


def goodput(value: Callable[[Measured], float], m: Measured) -> float | Missing:
    return per_s(value(m), m) if targets(m.result.slo) else Missing("no SLO given")


def attained(m: Measured, whole: float, which: str | None = None) -> float | Missing:
    if which is None:
        given, met = bool(targets(m.result.slo)), m.slo_met
    else:
        given, met = which in m.slo_each, m.slo_each.get(which, m.slo_met)
    return ratio(int(met.sum()), whole, "n=0: nothing to compare") if given else Missing("no such SLO given")


def finished_inputs(m: Measured) -> int:
    return int(m.result.trace.prompt_tokens[m.ended(State.FINISHED)].sum())


def finished_outputs(m: Measured) -> int:
    return int(m.output_tokens[m.ended(State.FINISHED)].sum())


def over_time(m: Measured, of: Callable[[Plans], FloatArray | IntArray], whole: float) -> float | Missing:
    """Mean over the duration of something that each plan has, as a share of `whole`."""
    total = sum(plans.sum_over_time(of(plans)) for plans in m.plans)
    return ratio(total, whole * m.duration_s, "the run takes no time")


def total_blocks(m: Measured) -> int:
    return sum(facts.total_blocks for facts in m.result.engines)


def per_step(m: Measured, of: Callable[[Plans], FloatArray | IntArray]) -> float | Missing:
    num_steps = sum(plans.num_steps for plans in m.plans)
    return ratio(sum(plans.sum_over_steps(of(plans)) for plans in m.plans), num_steps, "n=0: no step ran")


def while_busy(m: Measured, of: Callable[[Plans], FloatArray | IntArray]) -> float | Missing:
    return ratio(sum(p.sum_over_time(of(p)) for p in m.plans), busy_s(m), "n=0: no step ran")


def busy_s(m: Measured) -> float:
    return sum(float(plans.lasting_ns.sum()) for plans in m.plans) / NS_PER_S


def highest_share(m: Measured, column: str) -> float:
    """The highest share of its blocks that any engine had at the beginning of a plan."""
    return max(float(plans.column(column).max(initial=0)) / plans.facts.total_blocks for plans in m.plans)


def total_work(plans: Plans) -> FloatArray:
    return plans.decode_work + plans.prefill_work


def step_times(m: Measured, *, prefill: bool | None = None) -> Sample:
    parts = []
    for plans in m.plans:
        mine = slice(None) if prefill is None else np.repeat(plans.has_prefill == prefill, plans.steps)
        parts.append(plans.step_ns[mine])
    return Sample((parts[0] if len(parts) == 1 else np.concatenate(parts)) / NS_PER_S)


def step_spread(m: Measured) -> float | Missing:
    """Standard deviation of the steps' times."""
    sample = step_times(m)
    return sample.std() if sample.n else Missing("n=0: no step ran")


def prefix_hits(m: Measured) -> int:
    return int(view(m.result.requests.hit_tokens).sum() - view(m.result.requests.rehit_tokens).sum())


def hit_ratio(m: Measured) -> float | Missing:
    if not any(facts.prefix_caching for facts in m.result.engines):
        return Missing("no prefix cache")
    return ratio(prefix_hits(m), admitted_prompts(m), "n=0: nobody was admitted")


def admitted_prompts(m: Measured) -> int:
    return int(m.result.trace.prompt_tokens[m.admitted].sum())


def recomputed_tokens(m: Measured) -> int:
    """Lost by preemptions and not found cached again; counts those who never came back too."""
    return int(view(m.result.requests.lost_tokens).sum() - view(m.result.requests.rehit_tokens).sum())


def recomputed_bytes(m: Measured) -> float | Missing:
    """KV written a second time, on each GPU."""
    if not all(facts.kv_token_bytes for facts in m.result.engines):
        return Missing("the cost model names no model")
    tokens = view(m.result.requests.lost_tokens) - view(m.result.requests.rehit_tokens)
    engine = view(m.result.requests.engine)
    return sum(facts.kv_token_bytes * int(tokens[engine == at].sum()) for at, facts in enumerate(m.result.engines))


def swapped_blocks(plans: Plans) -> int:
    """Moved over the host link, both ways together."""
    return int(plans.column("swapped_blocks").sum())


def computed_tokens(m: Measured) -> float:
    return sum(p.sum_over_steps(p.column("decode_requests") + p.column("prefill_tokens")) for p in m.plans)


def token_gaps(m: Measured, *, zeros: int) -> Sample:
    pooled = m.gaps.with_zeros(zeros)
    return Sample(pooled.gap_ns / NS_PER_S, pooled.count)


def requeue_times(m: Measured) -> Sample:
    preempted = ~same(view(m.result.requests.preemptions), 0)
    return times(view(m.result.requests.requeue_ns), m.served & preempted)
