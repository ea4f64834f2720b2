"""The clock against queueing theory: one slot and deterministic service make the engine an M/D/1 queue."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim import make_scenario, replay
from sim.results.run import RunResult

SERVICE_S = 0.1
"""One step of 0.1 s per request: prompts of one token, answers of one token."""


def single_server(utilisation: float, requests: int, seed: int, **engine: Any) -> RunResult:
    return replay(
        make_scenario(
            {
                "seed": seed,
                "workload": {
                    "kind": "synthetic",
                    "num_requests": requests,
                    "arrivals": {"kind": "poisson", "rate_per_s": utilisation / SERVICE_S},
                    "prompt_tokens": {"kind": "fixed", "tokens": 1},
                    "output_tokens": {"kind": "fixed", "tokens": 1},
                    "max_tokens": "true",
                },
                "engine": {"preset": "reference", "slots": 1, "num_blocks": 100, **engine},
                "cost": {"kind": "linear", "a_s": SERVICE_S, "b_s_per_token": 0.0},
            }
        )
    )


def waits_s(run: RunResult) -> np.ndarray[Any, np.dtype[np.float64]]:
    return (np.asarray(run.requests.admitted_ns) - run.trace.arrival_ns) / 1e9


@pytest.mark.parametrize("utilisation", [0.3, 0.5, 0.7])
def test_m_d_1_mean_wait(utilisation: float) -> None:
    """Pollaczek-Khinchine: mean wait = rho D / (2 (1 - rho)). A request that comes to an idle engine starts at once."""
    theory_s = utilisation * SERVICE_S / (2 * (1 - utilisation))
    means = [waits_s(single_server(utilisation, 40_000, seed)).mean() for seed in range(3)]
    assert np.mean(means) == pytest.approx(theory_s, rel=0.04)


def test_m_d_1_share_that_waits() -> None:
    """PASTA: an arrival finds the server busy with probability rho."""
    waits = waits_s(single_server(0.6, 40_000, seed=4))
    assert (waits > 0).mean() == pytest.approx(0.6, abs=0.02)


@pytest.mark.parametrize("preset", ["reference", "vllm-v1"])
def test_little_law_holds_exactly(preset: str) -> None:
    """The time integral of requests in the system equals the sum of their sojourn times, whatever the engine does."""
    engine = {"preset": "reference", "slots": 4, "num_blocks": 100}
    if preset == "vllm-v1":
        engine = {"preset": "vllm-v1", "max_num_seqs": 4, "num_gpu_blocks_override": 101}
    run = replay(
        make_scenario(
            {
                "workload": {
                    "kind": "synthetic",
                    "num_requests": 500,
                    "arrivals": {"kind": "gamma", "rate_per_s": 6, "burstiness": 0.5},
                    "prompt_tokens": {"kind": "lognormal", "mean_tokens": 40, "sigma": 1.0, "max_tokens": 400},
                    "output_tokens": {"kind": "lognormal", "mean_tokens": 20, "sigma": 1.0, "max_tokens": 400},
                },
                "engine": engine,
                "cost": {"kind": "linear", "a_s": 0.02, "b_s_per_token": 1e-4},
            }
        )
    )
    arrivals, ends = run.trace.arrival_ns, np.asarray(run.requests.end_ns)
    events = np.concatenate([arrivals, ends])
    change = np.concatenate([np.ones_like(arrivals), -np.ones_like(ends)])
    order = np.argsort(events, kind="stable")
    in_system = np.cumsum(change[order])[:-1]
    integral = int((in_system * np.diff(events[order])).sum())
    assert integral == int((ends - arrivals).sum())
    seen = np.asarray(run.logs[0].steps.running) + np.asarray(run.logs[0].steps.waiting)
    assert seen.max() <= in_system.max()


def test_simultaneous_arrivals_at_an_idle_engine_all_get_into_the_first_step() -> None:
    """FASTCORE pitfall 10: an idle engine starts through a step boundary too, after every arrival of the instant."""
    rows = [{"id": str(i), "arrival_s": 1.0, "prompt_tokens": 8, "output_tokens": 2, "max_tokens": 2} for i in range(5)]
    for preset in ({"preset": "reference", "num_blocks": 100}, {"preset": "vllm-v1", "async_scheduling": False}):
        run = replay(
            make_scenario(
                {
                    "workload": {"kind": "inline", "requests": rows},
                    "engine": preset,
                    "cost": {"kind": "linear", "a_s": 0.01, "b_s_per_token": 0.0},
                }
            )
        )
        assert list(run.requests.admitted_ns) == [1_000_000_000] * 5
        assert run.logs[0].steps.prefill_requests[0] == 5


def test_an_arrival_exactly_at_a_step_end_is_considered_by_the_next_step() -> None:
    """Arrivals come before the step boundary of the same instant; one nanosecond later is a step later."""
    for late_ns, admitted_s in ((0, 0.02), (1, 0.03)):
        run = replay(
            make_scenario(
                {
                    "workload": {
                        "kind": "inline",
                        "requests": [
                            {"id": "a", "prompt_tokens": 4, "output_tokens": 50, "max_tokens": 50},
                            {
                                "id": "b",
                                "arrival_s": 0.02 + late_ns * 1e-9,
                                "prompt_tokens": 4,
                                "output_tokens": 2,
                                "max_tokens": 2,
                            },
                        ],
                    },
                    "engine": {"preset": "reference", "num_blocks": 100},
                    "cost": {"kind": "linear", "a_s": 0.01, "b_s_per_token": 0.0},
                }
            )
        )
        assert run.requests.admitted_ns[1] == round(admitted_s * 1e9)


def test_asynchronous_scheduling_looks_one_step_ahead() -> None:
    """DESIGN 2: a request arriving during step k is considered from step k + 2; steps follow without a gap."""
    run = replay(
        make_scenario(
            {
                "workload": {
                    "kind": "inline",
                    "requests": [
                        {"id": "a", "prompt_tokens": 4, "output_tokens": 50, "max_tokens": 50},
                        {"id": "b", "arrival_s": 0.035, "prompt_tokens": 4, "output_tokens": 2, "max_tokens": 2},
                    ],
                },
                "engine": {"preset": "vllm-v1", "num_gpu_blocks_override": 101},
                "cost": {"kind": "linear", "a_s": 0.01, "b_s_per_token": 0.0},
            }
        )
    )
    # It arrives during step 4 (0.03-0.04); step 5 is planned already, step 6 is planned as step 5 starts, at 0.04.
    assert run.requests.admitted_ns[1] == 40_000_000
    steps = run.logs[0].steps
    at = list(steps.prefill_requests).index(1, 1)
    assert steps.start_ns[at] == 50_000_000
    gaps = np.diff(np.asarray(steps.ends_ns))
    assert set(gaps.tolist()) == {10_000_000}
