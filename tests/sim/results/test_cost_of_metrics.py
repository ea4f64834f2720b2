"""What computing all metrics costs: memory per request and time, beside the replay."""

from __future__ import annotations

import math
import tracemalloc

from sim import make_scenario, replay
from sim.results.metrics import compute
from sim.results.run import RunResult

MOST_BYTES_EACH = 300
REQUESTS = 30_000


def loaded_run() -> RunResult:
    """Requests of one prompt and one answer length, 3.4 steps each; and CPU seconds."""
    workload = {
        "kind": "synthetic",
        "num_requests": REQUESTS,
        "arrivals": {"kind": "poisson", "rate_per_s": 15.4},
        "prompt_tokens": {"kind": "lognormal", "mean_tokens": 1155, "sigma": 1.0, "max_tokens": 30_000},
        "output_tokens": {"kind": "lognormal", "mean_tokens": 211, "sigma": 0.8, "max_tokens": 4_000},
    }
    engine = {"preset": "vllm-v1", "max_num_batched_tokens": 2048, "max_num_seqs": 256, "enable_prefix_caching": False}
    scenario = make_scenario({"workload": workload, "engine": engine, "slo": {"ttft_s": 1}})
    return replay(scenario)


def test_metrics_take_less_than_300_bytes_a_request() -> None:
    """Beyond the books. Where there are ten times as many steps as requests, there is more to keep per request.

    Their share of the time is in `benchmarks/replay_speed.py`.
    """
    run = loaded_run()
    compute(run)
    tracemalloc.start()
    try:
        metrics = compute(run)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    steps = metrics.value("num_steps")
    assert steps is not None
    assert math.floor(steps / REQUESTS) in range(2, 5)
    assert peak / REQUESTS < MOST_BYTES_EACH
