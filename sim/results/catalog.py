"""Every metric of a single run, named once: name, unit, what it is of, which way is better, and how it comes about.

Definitions: STYLE's glossary and DESIGN section 7. A spread's name gets the statistic in front: `p99_ttft_s`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sim.core.lifecycle import State
from sim.results import formulas as f
from sim.results.arrays import view
from sim.results.blocked import WAITED_FOR
from sim.results.clients import delivered_jain, ttft_min_max
from sim.results.measure import NS_PER_S, Measured
from sim.results.percentiles import Sample

Better = Literal["lower", "higher"]
Population = Literal["offered", "finished"]


@dataclass(frozen=True, slots=True)
class Single:
    """A metric of one number."""

    name: str
    unit: str
    better: Better | None
    population: Population | None
    """None: the engines' steps."""
    compute: Callable[[Measured], float | f.Missing]
    serve: str = ""
    """Its name in the result of `vllm bench serve`, if that has it."""


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
    serve: str = ""
    """As in `p99_{serve}_ms`, if `vllm bench serve` has it."""


def _end(state: State, better: Better | None, serve: str = "") -> Single:
    return Single(f"num_{state.value}", "requests", better, "offered", lambda m: m.ends[state], serve)


def _target(name: str, population: Population) -> Single:
    """Who meets one target, whatever the others say."""

    def compute(m: Measured) -> float | f.Missing:
        whole = m.num_offered if population == "offered" else m.ends[State.FINISHED]
        return f.attained(m, whole, f"{name}_s")

    return Single(f"slo_{name}_met_{population}_ratio", "ratio", "higher", population, compute)


def _blocked(place: int) -> Single:
    """Seconds that requests waited for a blocker before their first admission, or in vain."""
    name = f"queue_{WAITED_FOR[place].value}_s"
    return Single(name, "s", "lower", "offered", lambda m: float(m.total_blocked_ns[place]) / NS_PER_S)


NOBODY = "no request finished"
ONE_TOKEN = "all answers have one token"

SINGLES: tuple[Single, ...] = (
    Single("num_offered", "requests", None, "offered", lambda m: m.num_offered, "num_prompts"),
    Single("num_admitted", "requests", "higher", "offered", lambda m: int(m.admitted.sum())),
    _end(State.FINISHED, "higher", "completed"),
    _end(State.REJECTED, "lower"),
    _end(State.TIMED_OUT, "lower"),
    _end(State.CANCELLED, "lower"),
    _end(State.FAILED, "lower"),
    _end(State.QUEUED, None),
    _end(State.RUNNING, None),
    _end(State.SWAPPED, None),
    Single("num_lost", "requests", "lower", "offered",
           lambda m: m.num_offered - m.ends[State.FINISHED] - m.num_alive, "failed"),
    Single("admission_ratio", "ratio", "higher", "offered",
           lambda m: f.ratio(int(m.admitted.sum()), m.num_offered, "n=0: nothing was offered")),
    Single("duration_s", "s", None, "offered", lambda m: m.duration_s, "duration"),
    Single("offered_per_s", "requests/s", None, "offered", f.arrival_rate, "request_rate"),
    Single("finished_per_s", "requests/s", "higher", "finished", lambda m: f.per_s(m.ends[State.FINISHED], m),
           "request_throughput"),
    Single("input_tokens", "tokens", None, "finished", f.finished_inputs, "total_input_tokens"),
    Single("output_tokens", "tokens", None, "finished", f.finished_outputs, "total_output_tokens"),
    Single("input_tokens_per_s", "tokens/s", "higher", "finished",
           lambda m: f.per_s(f.finished_inputs(m), m)),
    Single("output_tokens_per_s", "tokens/s", "higher", "finished",
           lambda m: f.per_s(f.finished_outputs(m), m), "output_throughput"),
    Single("tokens_per_s", "tokens/s", "higher", "finished",
           lambda m: f.per_s(f.finished_inputs(m) + f.finished_outputs(m), m), "total_token_throughput"),
    Single("delivered_tokens_per_s", "tokens/s", "higher", "offered",
           lambda m: f.per_s(int(m.output_tokens[m.arrived].sum()), m)),
    # SLOs: of all that came, of what finished, and each target by itself
    Single("goodput_per_s", "requests/s", "higher", "offered", lambda m: f.goodput(lambda m: int(m.slo_met.sum()), m),
           "request_goodput"),
    Single("goodput_tokens_per_s", "tokens/s", "higher", "offered",
           lambda m: f.goodput(lambda m: int(m.output_tokens[m.slo_met].sum()), m)),
    Single("slo_met_offered_ratio", "ratio", "higher", "offered", lambda m: f.attained(m, m.num_offered)),
    Single("slo_met_finished_ratio", "ratio", "higher", "finished", lambda m: f.attained(m, m.ends[State.FINISHED])),
    *(_target(name, population) for name in ("ttft", "tpot", "e2e") for population in ("offered", "finished")),
    # what waiting was for, and what preemption cost
    *(_blocked(place) for place in range(len(WAITED_FOR))),
    Single("num_preemptions", "preemptions", "lower", "offered",
           lambda m: int(view(m.result.requests.preemptions).sum())),
    Single("num_preempted_requests", "requests", "lower", "offered",
           lambda m: int(np.count_nonzero(view(m.result.requests.preemptions)))),
    Single("lost_tokens", "tokens", "lower", "offered", lambda m: int(view(m.result.requests.lost_tokens).sum())),
    Single("rehit_tokens", "tokens", None, "offered", lambda m: int(view(m.result.requests.rehit_tokens).sum())),
    Single("recomputed_tokens", "tokens", "lower", "offered", f.recomputed_tokens),
    Single("recomputed_ratio", "ratio", "lower", "offered",
           lambda m: f.ratio(f.recomputed_tokens(m), f.computed_tokens(m), "n=0: no step ran")),
    Single("recomputed_bytes", "bytes", "lower", "offered", f.recomputed_bytes),
    Single("num_swaps", "preemptions", "lower", "offered",
           lambda m: sum(log.journal.num_swap_outs() for log in m.result.logs)),
    Single("swapped_blocks", "blocks", "lower", None,
           lambda m: sum(f.swapped_blocks(plans) for plans in m.plans)),
    Single("swapped_bytes", "bytes", "lower", None,
           lambda m: sum(f.swapped_blocks(plans) * plans.facts.host_block_bytes for plans in m.plans)),
    # the pool
    Single("mean_kv_used_ratio", "ratio", None, None,
           lambda m: f.over_time(m, lambda p: p.used_blocks, f.total_blocks(m))),
    Single("max_kv_used_ratio", "ratio", None, None,
           lambda m: max(facts.peak_used_blocks / facts.total_blocks for facts in m.result.engines)),
    Single("mean_kv_cached_ratio", "ratio", None, None,
           lambda m: f.over_time(m, lambda p: p.cached_blocks, f.total_blocks(m))),
    Single("mean_kv_reserved_ratio", "ratio", None, None,
           lambda m: f.over_time(m, lambda p: p.column("reserved_blocks"), f.total_blocks(m))),
    Single("max_kv_reserved_ratio", "ratio", None, None, lambda m: f.highest_share(m, "reserved_blocks")),
    Single("prefix_hit_tokens", "tokens", "higher", "offered", f.prefix_hits),
    Single("prefix_hit_ratio", "ratio", "higher", "offered", f.hit_ratio),
    Single("evicted_blocks", "blocks", "lower", None,
           lambda m: sum(facts.evicted_blocks for facts in m.result.engines)),
    Single("last_block_waste_ratio", "ratio", "lower", "offered",
           lambda m: f.ratio(m.last_blocks.empty, m.last_blocks.held, "n=0: no output")),
    # fairness between clients
    Single("num_clients", "clients", None, "offered", lambda m: len(m.clients.names)),
    Single("client_tokens_jain_ratio", "ratio", "higher", "offered", delivered_jain),
    Single("client_ttft_min_max_ratio", "ratio", "higher", "finished", ttft_min_max),
    # steps
    Single("num_steps", "steps", None, None, lambda m: sum(plans.num_steps for plans in m.plans)),
    Single("std_step_s", "s", "lower", None, f.step_spread),
    Single("busy_ratio", "ratio", None, None,
           lambda m: f.ratio(f.busy_s(m), m.duration_s * len(m.plans), "the run takes no time")),
    Single("mean_batch_requests_by_step", "requests", None, None, lambda m: f.per_step(m, lambda p: p.requests)),
    Single("mean_batch_requests_by_time", "requests", None, None, lambda m: f.while_busy(m, lambda p: p.requests)),
    Single("max_batch_requests", "requests", None, None,
           lambda m: int(max((plans.requests.max(initial=0) for plans in m.plans), default=0))),
    Single("mean_work_by_step", "token-work", None, None, lambda m: f.per_step(m, f.total_work)),
    Single("mean_work_by_time", "token-work", None, None, lambda m: f.while_busy(m, f.total_work)),
    Single("prefill_work_ratio", "ratio", None, None,
           lambda m: f.ratio(sum(p.sum_over_steps(p.prefill_work) for p in m.plans),
                            sum(p.sum_over_steps(f.total_work(p)) for p in m.plans), "n=0: no step ran")),
    Single("num_starved_steps", "steps", "lower", None,
           lambda m: sum(int(plans.steps[plans.starved].sum()) for plans in m.plans)),
    Single("starved_s", "s", "lower", None,
           lambda m: sum(float(plans.lasting_ns[plans.starved].sum()) for plans in m.plans) / NS_PER_S),
    Single("num_deferred_steps", "steps", "lower", None,
           lambda m: sum(sum(log.deferrals.values()) for log in m.result.logs)),
)  # fmt: skip

SPREADS: tuple[Spread, ...] = (
    Spread("ttft_s", "s", "lower", "finished", lambda m: f.times(m.ttft_ns, m.served), NOBODY,
           serve="ttft"),
    Spread("tpot_s", "s", "lower", "finished", lambda m: f.times(m.tpot_ns, m.served), ONE_TOKEN,
           serve="tpot"),
    Spread("itl_event_s", "s", "lower", "finished", lambda m: f.token_gaps(m, zeros=0), ONE_TOKEN,
           serve="itl"),
    Spread("itl_token_s", "s", "lower", "finished", lambda m: f.token_gaps(m, zeros=m.joined_tokens), ONE_TOKEN),
    Spread("longest_gap_s", "s", "lower", "finished", lambda m: f.times(m.tokens.max_gap_ns, m.served), ONE_TOKEN),
    Spread("e2e_s", "s", "lower", "finished", lambda m: f.times(m.e2e_ns, m.served), NOBODY, serve="e2el"),
    Spread("e2e_s_per_token", "s/token", "lower", "finished", lambda m: f.times(m.normalised_ns, m.served), NOBODY),
    Spread("queue_s", "s", "lower", "finished", lambda m: f.times(m.queue_ns, m.served), NOBODY),
    Spread("requeue_s", "s", "lower", "finished", f.requeue_times, "nobody was preempted"),
    Spread("offered_ttft_s", "s", "lower", "offered", lambda m: f.offered_times(m.ttft_ns, m), "nothing was offered"),
    Spread("offered_e2e_s", "s", "lower", "offered", lambda m: f.offered_times(m.e2e_ns, m), "nothing was offered"),
    Spread("step_s", "s", None, None, f.step_times, "no step ran", latency=False),
    Spread("decode_step_s", "s", None, None, lambda m: f.step_times(m, prefill=False), "no such step", latency=False),
    Spread("prefill_step_s", "s", None, None, lambda m: f.step_times(m, prefill=True), "no such step", latency=False),
)  # fmt: skip
