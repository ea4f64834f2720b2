"""A real vLLM engine's runs on a CPU: given when its steps started, our core forms every one of its batches."""

from __future__ import annotations

import gzip
import json
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from sim.core.batch import batch
from sim.core.engine import EngineCore
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE, VllmV1

RUNS = Path(__file__).parent / "vllm_cpu" / "runs"
NAMES = sorted(path.name.removesuffix(".steps.jsonl.gz") for path in RUNS.glob("*.steps.jsonl.gz"))

Rows = list[dict[str, Any]]


def read(name: str, table: str) -> tuple[dict[str, Any], Rows]:
    """The meta line of a run's file and its rows."""
    with gzip.open(RUNS / f"{name}.{table}.jsonl.gz", "rt", encoding="utf-8") as lines:
        meta, *rows = (json.loads(line) for line in lines)
    return meta["meta"], rows


def core_of(engine: dict[str, Any]) -> EngineCore:
    flags = {**engine, "num_gpu_blocks_override": engine["num_gpu_blocks"], "async_scheduling": False}
    del flags["num_gpu_blocks"]
    return EngineCore(VllmV1(**flags).spec(UNKNOWN_HARDWARE))


def replay(core: EngineCore, requests: Rows, starts_s: list[float]) -> Rows:
    """What the core does if its steps start then: batch, preempted, running, waiting, free blocks of each."""
    arriving = deque(sorted(requests, key=lambda row: row["added_s"]))
    steps = []
    for start_s in starts_s:
        while arriving and arriving[0]["added_s"] <= start_s:
            row = arriving.popleft()
            request = Request(row["id"], prompt_tokens=row["prompt_len"], max_tokens=row["output_len"])
            core.submit(request, stop_after=row["output_len"])
        plan = core.plan_step()
        assert plan is not None, f"nothing to run at {start_s}"
        steps.append(
            {
                "batch": [[item.request.id, item.tokens, item.context] for item in batch(core, plan)],
                "preempted": [request.id for request in plan.preempted],
                "running": len(core.running),
                "waiting": len(core.waiting),
                "free_blocks": core.store.free_blocks,
            }
        )
        core.cut(plan, 1)
        core.commit_step(plan, 1)
    assert not arriving
    return steps


@pytest.mark.parametrize("name", NAMES)
def test_every_batch_is_the_recorded_one(name: str):
    """Batch, preemptions, running, waiting and free blocks of every step, and nobody is left at the end."""
    meta, recorded = read(name, "steps")
    _, requests = read(name, "requests")
    core = core_of(meta["engine"])
    ours = replay(core, requests, [step["t_s"] for step in recorded])
    for mine, theirs in zip(ours, recorded, strict=True):
        assert mine == {key: theirs[key] for key in mine}, f"step {theirs['i']}"
    assert core.idle


def test_totals():
    """19 runs, 25,533 steps, 96 preemptions (as NOISE.md of the recordings counts them)."""
    assert len(NAMES) == 19
    steps = [step for name in NAMES for step in read(name, "steps")[1]]
    assert len(steps) == 25_533
    assert sum(len(step["preempted"]) for step in steps) == 96


def test_arrival_times_alone_do_not_do():
    """The engine takes requests in at step boundaries: by arrival times instead, one run comes out otherwise."""
    different = 0
    for name in NAMES:
        meta, recorded = read(name, "steps")
        _, requests = read(name, "requests")
        early = [{**row, "added_s": row["arrival_s"]} for row in requests]
        try:
            ours = replay(core_of(meta["engine"]), early, [step["t_s"] for step in recorded])
        except AssertionError:
            different += 1
            continue
        different += any(mine["batch"] != theirs["batch"] for mine, theirs in zip(ours, recorded, strict=True))
    assert different == 1
