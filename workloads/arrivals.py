"""When requests arrive: constant, Poisson or gamma gaps at a given rate.

As in vLLM's benchmark (vllm/benchmarks/serve.py, get_request): the first request comes one gap after 0, and the times
are stretched so that the last one is at num_requests / rate exactly, for every burstiness, Poisson included. The
stretching is the one thing about a workload that depends on how many requests are drawn.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from workloads.config import Config
from workloads.rng import FloatArray, gammas
from workloads.trace import IntArray

Rate = Annotated[float, Field(gt=0)]
"""Requests per second; inf = all at once."""

_MAX_NS = 2**62
"""146 years; also the most that gap units may add up to."""
_GAP_UNITS = 2.0**32
"""Of a mean gap: gaps become integers first, so that their sum is the same on every machine."""


class Constant(Config):
    """One request every 1 / rate seconds."""

    kind: Literal["constant"] = "constant"
    rate_per_s: Rate


class Poisson(Config):
    """Exponential gaps, stretched: `Gamma` with burstiness 1."""

    kind: Literal["poisson"] = "poisson"
    rate_per_s: Rate


class Gamma(Config):
    """Gamma gaps of shape `burstiness` and mean 1 / rate. *Lower* is burstier: CV = 1/sqrt(burstiness).

    inf is `Constant`.
    """

    kind: Literal["gamma"] = "gamma"
    rate_per_s: Rate
    burstiness: float = Field(gt=0)


Arrivals = Annotated[Constant | Poisson | Gamma, Field(discriminator="kind")]


def arrival_ns(arrivals: Constant | Poisson | Gamma, num_requests: int, seed: int) -> IntArray:
    """Times of arrival, ascending. Shape: (num_requests,). `ValueError` where the clock could not hold the last."""
    last_ns = num_requests * 1e9 / arrivals.rate_per_s
    if last_ns > _MAX_NS:
        raise ValueError(f"rate_per_s must be >= {num_requests * 1e9 / _MAX_NS:.3g}, got {arrivals.rate_per_s}")
    places = np.arange(1, num_requests + 1, dtype=np.float64)
    burstiness = _burstiness(arrivals)
    if math.isinf(burstiness) or math.isinf(arrivals.rate_per_s):
        return _rounded(places * 1e9 / arrivals.rate_per_s)
    gaps = gammas(seed, "arrivals", num_requests, burstiness) / burstiness
    until = np.cumsum(_rounded(np.minimum(gaps * _GAP_UNITS, _MAX_NS / num_requests)))
    if until[-1] == 0:  # burstiness so low that no gap can be told from 0: one burst
        return _rounded(np.full(num_requests, last_ns))
    return _rounded(until / until[-1] * last_ns)


def _burstiness(arrivals: Constant | Poisson | Gamma) -> float:
    if isinstance(arrivals, Gamma):
        return arrivals.burstiness
    return 1.0 if isinstance(arrivals, Poisson) else math.inf


def _rounded(values: FloatArray) -> IntArray:
    whole: IntArray = np.rint(values).astype(np.int64)
    return whole
