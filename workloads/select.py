"""Pure changes to a `Trace`: other rows, fewer requests, another rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from workloads.trace import IntArray, PrefixIds, Trace

_T = TypeVar("_T")


def take(trace: Trace, index: IntArray) -> Trace:
    """The requests at these places, in this order. Shape of `index`: (num_taken,)."""
    places = index.tolist()

    def numbers(column: IntArray | None) -> IntArray | None:
        return None if column is None else column[index]

    def items(column: Sequence[_T] | None) -> list[_T] | None:
        return None if column is None else [column[i] for i in places]

    prefix = trace.prefix
    return replace(
        trace,
        arrival_ns=trace.arrival_ns[index],
        prompt_tokens=trace.prompt_tokens[index],
        output_tokens=trace.output_tokens[index],
        max_tokens=trace.max_tokens[index],
        request_ids=items(trace.request_ids),
        priority=numbers(trace.priority),
        clients=items(trace.clients),
        queue_timeout_ns=numbers(trace.queue_timeout_ns),
        timeout_ns=numbers(trace.timeout_ns),
        cancel_after_ns=numbers(trace.cancel_after_ns),
        prefix=None if prefix is None else PrefixIds(prefix.group_tokens, [prefix.ids[i] for i in places]),
    )


def limit(trace: Trace, num_requests: int) -> Trace:
    """The first `num_requests` arrivals; all of them where there are no more."""
    if num_requests < 1:
        raise ValueError(f"num_requests must be >= 1, got {num_requests}")
    if num_requests >= len(trace):
        return trace
    note = f"first {num_requests} of {len(trace)} requests"
    return _noted(take(trace, np.arange(num_requests)), note)


def scale_rate(trace: Trace, factor: float) -> Trace:
    """Requests arrive `factor` times as fast: arrivals, so also the gaps between them, are divided by it.

    Lengths, timeouts and cancels stay. Each arrival is rounded to 1 ns by itself, so errors do not add up.
    """
    if not 0 < factor < math.inf:
        raise ValueError(f"factor must be finite and > 0, got {factor}")
    scaled = np.rint(trace.arrival_ns / factor)
    if len(trace) and scaled[-1] >= 2**62:
        raise ValueError(f"factor={factor} must leave arrivals below 2**62 ns, the last is at {scaled[-1]:.3g} ns")
    return _noted(replace(trace, arrival_ns=scaled.astype(np.int64)), f"arrival rate scaled by {factor:g}")


def _noted(trace: Trace, note: str) -> Trace:
    return replace(trace, notes=(*trace.notes, note))
