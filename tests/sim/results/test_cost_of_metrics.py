"""What computing all metrics costs: memory per request and time, beside the replay."""

from __future__ import annotations

import math
import time
import tracemalloc

from sim import make_scenario, replay
from sim.results.metrics import compute
from sim.results.run import RunResult

MOST_BYTES_EACH = 300
REQUESTS = 30_000


def loaded_run() -> tuple[RunResult, float]:
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
    began = time.process_time()
    run = replay(scenario)
    return run, time.process_time() - began


def test_metrics_take_less_than_300_bytes_a_request_and_a_fifth_of_the_replay() -> None:
    """Beyond the books. Where there are ten times as many steps as requests, there is more to keep per request."""
    run, replayed_s = loaded_run()
    began = time.process_time()
    compute(run)
    computed_s = time.process_time() - began
    tracemalloc.start()
    try:
        metrics = compute(run)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    steps = metrics.value("num_steps")
    assert steps is not None
    assert math.floor(steps / REQUESTS) in range(2, 5)
    print(
        f"{peak / REQUESTS:.0f} bytes a request, {steps / REQUESTS:.1f} steps each, {computed_s / replayed_s:.1%} of the replay"
    )
    assert peak / REQUESTS < MOST_BYTES_EACH
    assert computed_s < replayed_s / 5
