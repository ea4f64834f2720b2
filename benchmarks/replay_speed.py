"""How fast we replay: requests per second of CPU time, metrics included, over load, size, pool and prefix caching.

    python benchmarks/replay_speed.py                    # the whole table, some minutes
    python benchmarks/replay_speed.py --sizes 1000 10000
    python benchmarks/replay_speed.py --mooncake conversation_trace.jsonl

The recipe is fixed: log-normal prompts (mean 1,155) and outputs (mean 211), Poisson arrivals, the shipped profile,
2,048 tokens a step, 256 slots, blocks of 16. Load is relative to capacity: finished requests per second of the same
requests when all of them arrive at t = 0. Every row is a process of its own, so that peak memory means something;
`bytes/req` is what computing the metrics takes beyond the books.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
import tracemalloc
from typing import Any

ROOMY_BLOCKS, TIGHT_BLOCKS = 60_001, 5_201
HEADER = (
    f"{'case':<34}{'requests':>9}{'requests/s':>12}{'steps/s':>10}{'tokens/s':>12}{'events/req':>12}"
    f"{'stretched':>11}{'preempted':>11}{'metrics':>9}{'bytes/req':>11}{'peak MiB':>10}"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--mooncake", help="a Mooncake JSONL trace to add, with 512- and 16-token blocks")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(json.loads(arguments.one))))
        return
    print(HEADER)
    for case in cases(arguments.sizes):
        report(case)
    if arguments.mooncake:
        for block_size in (512, 16):
            report({"name": f"mooncake, blocks of {block_size}", "trace": arguments.mooncake, "block_size": block_size})


def cases(sizes: list[int]) -> list[dict[str, Any]]:
    """The rows of the table."""
    largest = max(sizes)
    rows = [{"name": "80 % load", "requests": size} for size in sizes]
    rows += [{"name": f"{load} % load", "requests": largest, "load": load / 100} for load in (20, 110)]
    rows += [
        {"name": "80 % load, asynchronous", "requests": largest, "async": True},
        {"name": "80 % load, prefix caching", "requests": largest, "prefix": True},
        {"name": "80 % load, tight pool", "requests": largest, "blocks": TIGHT_BLOCKS},
        {"name": "80 % load, tight, prefix caching", "requests": largest, "blocks": TIGHT_BLOCKS, "prefix": True},
    ]
    return rows


def report(case: dict[str, Any]) -> None:
    """Measure in a fresh process, print a row, and the slope against the row before of the same kind."""
    command = [sys.executable, __file__, "--one", json.dumps(case)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(
        f"{case['name']:<34}{found['requests']:>9,}{found['requests_per_s']:>12,.0f}{found['steps_per_s']:>10,.0f}"
        f"{found['tokens_per_s']:>12,.0f}{found['events_per_request']:>12.2f}{found['stretched_ratio']:>11.1%}"
        f"{found['preempted_ratio']:>11.1%}{found['metrics_ratio']:>9.1%}{found['metrics_bytes']:>11,.0f}{found['peak_mib']:>10,.0f}",
        flush=True,
    )
    slope(case, found)


_before: dict[str, tuple[int, float]] = {}


def slope(case: dict[str, Any], found: dict[str, Any]) -> None:
    """Exponent of CPU time over the number of requests: 1.00 is linear."""
    size, seconds = found["requests"], found["cpu_s"]
    if case["name"] in _before:
        size_before, seconds_before = _before[case["name"]]
        exponent = math.log(seconds / seconds_before) / math.log(size / size_before)
        print(f"{'':<34}slope {exponent:.2f} (CPU time ~ requests ^ slope)")
    _before[case["name"]] = (size, seconds)


def scenario(case: dict[str, Any], rate_per_s: float) -> Any:
    from sim import make_scenario

    workload: dict[str, Any] = {
        "kind": "synthetic",
        "num_requests": case.get("requests", 1),
        "arrivals": {"kind": "poisson", "rate_per_s": rate_per_s},
        "prompt_tokens": {"kind": "lognormal", "mean_tokens": 1155, "sigma": 1.0, "max_tokens": 30_000},
        "output_tokens": {"kind": "lognormal", "mean_tokens": 211, "sigma": 0.8, "max_tokens": 4_000},
    }
    engine = {
        "preset": "vllm-v1",
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 256,
        "block_size": case.get("block_size", 16),
        "num_gpu_blocks_override": case.get("blocks", ROOMY_BLOCKS),
        "enable_prefix_caching": case.get("prefix", False),
        "async_scheduling": case.get("async", False),
    }
    if "trace" in case:
        workload = {"kind": "trace", "path": case["trace"]}
        engine = {"preset": "vllm-v1", "block_size": case["block_size"]}
    return make_scenario({"workload": workload, "engine": engine, "seed": 1})


def capacity_per_s(case: dict[str, Any]) -> float:
    """Finished requests per second of the same requests, all there at t = 0, in the roomy pool."""
    from sim import replay

    sample = {**case, "requests": min(case["requests"], 5_000), "blocks": ROOMY_BLOCKS, "prefix": False}
    run = replay(scenario(sample, math.inf))
    return sample["requests"] / (max(run.requests.end_ns) / 1e9)


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """One row: CPU seconds of replay and metrics, after the imports."""
    from sim import replay
    from sim.results.metrics import compute

    rate = case.get("load", 0.8) * capacity_per_s(case) if "requests" in case else 1.0
    description = scenario(case, rate)
    started = time.process_time()
    run = replay(description)
    replayed = time.process_time()
    compute(run)
    finished = time.process_time()
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    tracemalloc.start()
    compute(run)
    metrics_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    requests, seconds, steps = len(run.requests.state), finished - started, run.logs[0].steps
    pure = [count for count, chunks in zip(steps.steps, steps.prefill_requests, strict=True) if not chunks]
    return {
        "requests": requests,
        "cpu_s": seconds,
        "requests_per_s": requests / seconds,
        "steps_per_s": sum(steps.steps) / seconds,
        "tokens_per_s": (sum(run.requests.output_tokens) + sum(steps.prefill_tokens)) / seconds,
        "events_per_request": run.outcome.events / requests,
        "stretched_ratio": sum(count for count in pure if count > 1) / sum(steps.steps),
        "preempted_ratio": sum(count > 0 for count in run.requests.preemptions) / requests,
        "metrics_ratio": (finished - replayed) / seconds,
        "metrics_bytes": metrics_bytes / requests,
        "peak_mib": peak_mib,
    }


if __name__ == "__main__":
    main()
