"""Comparisons to look at: small replays of a synthetic load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sim import compare
from sim.results.comparison.comparison import Comparison


def base(**changes: Any) -> dict[str, Any]:
    scenario = {
        "workload": {
            "kind": "synthetic",
            "num_requests": 300,
            "arrivals": {"kind": "poisson", "rate_per_s": 20},
            "prompt_tokens": {"kind": "lognormal", "mean_tokens": 300, "sigma": 0.8},
            "output_tokens": {"kind": "lognormal", "mean_tokens": 60, "sigma": 0.6},
        },
        "engine": {"preset": "reference", "token_budget": 1024, "num_blocks": 900},
        "slo": {"ttft_s": 0.4, "tpot_s": 0.02},
        "cost": {"kind": "linear", "a_s": 0.006, "b_s_per_token": 3e-5},
    }
    return scenario | changes


@pytest.fixture(scope="session")
def make_base() -> Callable[..., dict[str, Any]]:
    return base


@pytest.fixture(scope="session")
def single() -> Comparison:
    """One run each, at two rates."""
    return compare(base(), vary={"slots": [64, 8]}, rate_scales=[0.5, 1])


@pytest.fixture(scope="session")
def seeded() -> Comparison:
    return compare(base(), vary={"slots": [64, 12]}, rate_scales=[0.5, 1], seeds=range(5))
