"""The same run client by client: who got how much, who waited how long, and how equal that is."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sim.core.lifecycle import State
from sim.results.arrays import BoolArray, FloatArray
from sim.results.formulas import Missing
from sim.results.measure import NS_PER_S, Measured
from sim.results.percentiles import Sample

ONE_CLIENT = "the trace names no two clients"


@dataclass(frozen=True, slots=True)
class ClientRow:
    """TTFT is of its finished requests; None where none finished."""

    client: str
    num_offered: int
    num_finished: int
    output_tokens: int
    """Delivered, to whatever end."""
    asked_tokens: int
    """Of the answers that it would have had from an engine that serves everybody."""
    slo_met_offered_ratio: float | None
    """None without SLOs."""
    mean_ttft_s: float | None
    p50_ttft_s: float | None
    p99_ttft_s: float | None


def client_rows(measured: Measured) -> list[ClientRow]:
    """One row per client of the trace, by name; nothing where the trace names none or only one."""
    clients = measured.clients
    if len(clients.names) < 2:
        return []
    offered = _of_each(measured, measured.arrived)
    finished = _of_each(measured, measured.ended(State.FINISHED))
    delivered, asked = _delivered_and_asked(measured)
    met = _of_each(measured, measured.slo_met)
    waits = _ttft_by_client(measured)
    return [
        ClientRow(
            client=name,
            num_offered=int(offered[at]),
            num_finished=int(finished[at]),
            output_tokens=int(delivered[at]),
            asked_tokens=int(asked[at]),
            slo_met_offered_ratio=met[at] / offered[at] if measured.slo_each and offered[at] else None,
            mean_ttft_s=waits[at].mean() if waits[at].n else None,
            p50_ttft_s=waits[at].percentiles((50,))[0] if waits[at].n else None,
            p99_ttft_s=waits[at].percentiles((99,))[0] if waits[at].n else None,
        )
        for at, name in enumerate(clients.names)
    ]


def _of_each(measured: Measured, mask: BoolArray, weights: FloatArray | None = None) -> FloatArray:
    """How many of the requests in the mask each client has, or the sum of their weights."""
    of = measured.clients.of[mask]
    weights = None if weights is None else weights[mask]
    return np.bincount(of, weights=weights, minlength=len(measured.clients.names)).astype(np.float64)


def _delivered_and_asked(measured: Measured) -> tuple[FloatArray, FloatArray]:
    tokens = (measured.output_tokens, measured.result.trace.output_tokens)
    delivered, asked = (_of_each(measured, measured.arrived, each.astype(np.float64)) for each in tokens)
    return delivered, asked


def _ttft_by_client(measured: Measured) -> list[Sample]:
    """Of each client's finished requests, in seconds."""
    of = measured.clients.of[measured.served]
    order = np.argsort(of, kind="stable")
    values = (measured.ttft_ns[measured.served] / NS_PER_S)[order]
    bounds = np.searchsorted(of[order], np.arange(len(measured.clients.names) + 1))
    return [Sample(values[low:high]) for low, high in pairwise(bounds)]


# -- fairness


def jain(shares: FloatArray) -> float:
    """Jain's index (Jain, Chiu, Hawe 1984, DEC-TR-301): 1 if all have the same, k/n if k of n have all."""
    return float(shares.sum() ** 2 / (len(shares) * (shares**2).sum()))


def delivered_jain(measured: Measured) -> float | Missing:
    """Jain's index of what each client got of the output tokens that it asked for."""
    if len(measured.clients.names) < 2:
        return Missing(ONE_CLIENT)
    delivered, asked = _delivered_and_asked(measured)
    if not delivered.any():
        return Missing("n=0: no output")
    return jain(delivered[asked > 0] / asked[asked > 0])


def ttft_min_max(measured: Measured) -> float | Missing:
    """Shortest mean TTFT of any client by the longest one."""
    if len(measured.clients.names) < 2:
        return Missing(ONE_CLIENT)
    means = [sample.mean() for sample in _ttft_by_client(measured) if sample.n]
    if len(means) < 2 or not max(means):
        return Missing("fewer than two clients were served")
    return min(means) / max(means)
