"""The same run client by client: who got how much, and who waited how long."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from sim.core.lifecycle import State
from sim.results.measure import NS_PER_S, Measured
from sim.results.percentiles import Sample


@dataclass(frozen=True, slots=True)
class ClientRow:
    """TTFT is of its finished requests; None where none finished."""

    client: str
    num_offered: int
    num_finished: int
    output_tokens: int
    """Delivered, to whatever end."""
    slo_met_offered_ratio: float | None
    """None without SLOs."""
    p50_ttft_s: float | None
    p99_ttft_s: float | None


def client_rows(measured: Measured) -> list[ClientRow]:
    """One row per client of the trace, by name; nothing where the trace names none or only one."""
    clients = measured.result.trace.clients
    if clients is None:
        return []
    names, of = np.unique(np.array(clients, dtype=object).astype(str), return_inverse=True)
    if len(names) < 2:
        return []
    offered = np.bincount(of[measured.arrived], minlength=len(names))
    finished = np.bincount(of[measured.ended(State.FINISHED)], minlength=len(names))
    tokens = np.bincount(of, weights=measured.output_tokens, minlength=len(names))
    met = np.bincount(of[measured.slo_met], minlength=len(names))
    waits = _ttft_by_client(measured, of, len(names))
    return [
        ClientRow(
            client=str(name),
            num_offered=int(offered[at]),
            num_finished=int(finished[at]),
            output_tokens=int(tokens[at]),
            slo_met_offered_ratio=met[at] / offered[at] if measured.slo_each and offered[at] else None,
            p50_ttft_s=waits[at][0],
            p99_ttft_s=waits[at][1],
        )
        for at, name in enumerate(names)
    ]


def _ttft_by_client(measured: Measured, of: Any, num_clients: int) -> list[list[float | None]]:
    """P50 and P99 TTFT of each client's finished requests."""
    order = np.argsort(of[measured.served], kind="stable")
    values = (measured.ttft_ns[measured.served] / NS_PER_S)[order]
    bounds = np.searchsorted(of[measured.served][order], np.arange(num_clients + 1))
    groups = [values[low:high] for low, high in pairwise(bounds)]
    return [list(Sample(group).percentiles((50, 99))) if len(group) else [None, None] for group in groups]
