"""What each preset costs: a replay of the same requests, and one scheduling step against running and queue length.

    python benchmarks/presets.py                        # both tables, some minutes
    python benchmarks/presets.py --requests 2000 --steps 50

The first table replays the requests of `replay_speed.py` at 80 % of the preset's own capacity. The second drives the
engine core alone, without clock and cost model: n requests decode, W wait behind a head whose blocks are not there.
"every step" plans each step by itself; "stretched" lets a plan hold for as long as it may, per step that it holds.
Requests that decode are never walked, and behind a blocked head nobody is looked at: neither column may grow with W,
and only engines that walk (or sort) by their own rules may grow with n.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

from sim import make_scenario, replay
from sim.core.engine import EngineCore
from sim.core.request import Request
from sim.engines import ENGINES, Hardware, engine_config
from sim.kv.content import Content

SLOTS = {
    "mini-runtime": "max_batch_size",
    "reference": "slots",
    "sglang": "max_running_requests",
    "static-batch": "slots",
    "textbook": "slots",
    "trtllm-guaranteed-no-evict": "max_batch_size",
    "trtllm-max-utilization": "max_batch_size",
    "trtllm-static-batch": "max_batch_size",
    "vllm-v0": "max_num_seqs",
    "vllm-v1": "max_num_seqs",
}
"""Each engine's own name for its sequence slots."""

PROMPT_TOKENS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--presets", nargs="+", default=[name for name in ENGINES.names() if name in SLOTS])
    arguments = parser.parse_args()
    print(f"{'preset':<28}{'requests/s':>12}{'events/req':>12}{'stretched':>11}{'preempted':>11}")
    for preset in arguments.presets:
        replayed(preset, arguments.requests)
    print(f"\n{'preset':<28}{'running':>9}{'waiting':>9}{'every step µs':>15}{'stretched µs':>14}")
    for preset in arguments.presets:
        for running, waiting in ((10, 0), (100, 0), (1000, 0), (100, 100), (100, 10_000)):
            scheduled(preset, running, waiting, arguments.steps)


# -- replays


def scenario(preset: str, requests: int, rate_per_s: float) -> Any:
    workload = {
        "kind": "synthetic",
        "num_requests": requests,
        "arrivals": {"kind": "poisson", "rate_per_s": rate_per_s},
        "prompt_tokens": {"kind": "lognormal", "mean_tokens": 1155, "sigma": 1.0, "max_tokens": 30_000},
        "output_tokens": {"kind": "lognormal", "mean_tokens": 211, "sigma": 0.8, "max_tokens": 4_000},
    }
    engine = {"preset": preset, SLOTS[preset]: 256}
    if preset == "textbook":
        engine["num_blocks"] = 1 << 18
    return make_scenario({"workload": workload, "engine": engine, "seed": 1, "max_tokens_from": "factor:1.5"})


def replayed(preset: str, requests: int) -> None:
    """One row: the requests at 80 % of what the preset can do when all of them are there at once."""
    sample = min(requests, 2_000)
    burst = replay(scenario(preset, sample, math.inf))
    rate = 0.8 * sample / (max(burst.requests.end_ns) / 1e9)
    description = scenario(preset, requests, rate)
    started = time.process_time()
    run = replay(description)
    seconds = time.process_time() - started
    steps = run.logs[0].steps.steps
    stretched = sum(count for count in steps if count > 1) / max(1, sum(steps))
    preempted = sum(count > 0 for count in run.requests.preemptions) / requests
    print(
        f"{preset:<28}{requests / seconds:>12,.0f}{run.outcome.events / requests:>12.2f}{stretched:>11.1%}"
        f"{preempted:>11.1%}",
        flush=True,
    )


# -- single steps


def scheduled(preset: str, running: int, waiting: int, steps: int) -> None:
    """One row: CPU time of planning and committing a step in which everybody decodes."""
    each = [_step_us(preset, running, waiting, steps, max_stretch) for max_stretch in (1, steps)]
    print(f"{preset:<28}{running:>9,}{waiting:>9,}{each[0]:>15.1f}{each[1]:>14.2f}", flush=True)


def _step_us(preset: str, running: int, waiting: int, steps: int, max_stretch: int) -> float:
    output_tokens = 4 * steps
    kv_tokens = running * (PROMPT_TOKENS + output_tokens + 64)
    hardware = Hardware(kv_tokens=kv_tokens, max_model_len=kv_tokens)
    flags: dict[str, Any] = {SLOTS[preset]: running if preset.endswith("static-batch") else running + 10}
    if preset == "textbook":
        flags["num_blocks"] = kv_tokens // 4
    if preset == "vllm-v1":
        flags["async_scheduling"] = False
    if preset.startswith("trtllm"):
        flags["max_num_tokens"] = kv_tokens
    core = EngineCore(engine_config(preset, flags).spec(hardware), max_stretch=max_stretch)
    for number in range(running):
        _submit(core, f"r{number}", PROMPT_TOKENS, output_tokens)
    while core.cohort.size < running:
        _run(core)
    for number in range(waiting):
        _submit(core, f"w{number}", kv_tokens - output_tokens - 64, output_tokens)
    _run(core)  # finds the head blocked
    done, started = 0, time.process_time()
    while done < steps:
        done += _run(core)
    return 1e6 * (time.process_time() - started) / done


def _submit(core: EngineCore, name: str, prompt_tokens: int, output_tokens: int) -> None:
    content = Content((), shared_blocks=0, owner=0)
    request = Request(name, prompt_tokens=prompt_tokens, max_tokens=output_tokens, content=content)
    core.submit(request, stop_after=output_tokens)


def _run(core: EngineCore) -> int:
    """Plan and commit once; returns the steps of the plan (of a whole turn, where it has two forwards)."""
    plan = core.plan_step()
    assert plan is not None
    core.commit_step(plan, plan.steps)
    return plan.steps


if __name__ == "__main__":
    main()
