"""How far to trust a run: is the cost model used where it was fitted, and what was left out or assumed?"""

from __future__ import annotations

import numpy as np

from costmodel.shape import StepShape
from sim.results.arrays import IntArray
from sim.results.measure import Measured
from sim.results.steps import Plans
from sim.results.wording import count, percent

PLANS_LOOKED_AT = 500
MOST_ROWS_LISTED = 20


def trust_lines(measured: Measured) -> list[str]:
    """One sentence each."""
    run = measured.result
    outside = outside_range(measured) or ["All plans looked at lie inside the profile's range"]
    return [f"Cost profile: {run.profile_name}.", *(f"{line}." for line in outside), *run.notes]


def outside_range(measured: Measured) -> list[str]:
    """Where the cost model is asked about steps unlike those it was fitted to; nothing if it is not."""
    lines = []
    for plans, cost in zip(measured.plans, measured.result.costs, strict=True):
        reasons = [cost.out_of_range(_shape(plans, int(plan))) for plan in _looked_at(plans)]
        outside = [reason for reason in reasons if reason is not None]
        if outside:
            share = percent(len(outside) / len(reasons))
            lines.append(f"{share} of {len(reasons):,} plans looked at lie outside the profile's range: {outside[0]}")
    return lines


def left_out_rows(measured: Measured) -> list[str]:
    """Rows of the trace that were not used, with the reason; the first of them, and how many more there are."""
    trace = measured.result.trace
    lines = [f"{row.where}: {row.problem}" for row in (*trace.bad_rows, *trace.failed_rows)]
    more = len(lines) - MOST_ROWS_LISTED
    return lines[:MOST_ROWS_LISTED] + ([f"and {count(more, 'more row')}"] if more > 0 else [])


def _looked_at(plans: Plans) -> IntArray:
    """Evenly spread over the run, and the largest of each kind."""
    if not len(plans.steps):
        return np.zeros(0, np.int64)
    spread = np.linspace(0, len(plans.steps) - 1, min(PLANS_LOOKED_AT, len(plans.steps))).astype(np.int64)
    kinds = ("decode_requests", "decode_context_tokens", "prefill_tokens", "prefill_pairs2")
    return np.union1d(spread, [int(plans.column(kind).argmax()) for kind in kinds])


def _shape(plans: Plans, plan: int) -> StepShape:
    """Of a plan's first step; several prompts count as one, whose context has the same attention pairs."""
    tokens = int(plans.column("prefill_tokens")[plan])
    context = (int(plans.column("prefill_pairs2")[plan]) // tokens - tokens - 1) // 2 if tokens else 0
    return StepShape(
        ((tokens, max(0, context)),) if tokens else (),
        int(plans.column("decode_requests")[plan]),
        int(plans.column("decode_context_tokens")[plan]),
    )
