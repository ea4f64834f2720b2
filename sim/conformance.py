"""Does an engine take the decisions that a real one took? Rebuild a recording from its inputs; compare step by step.

`emit` drives our core as the recorder drove the real scheduler and writes the same log; `compare` is a separate step
that looks at two logs. Nothing but `config`, `requests` and `aborts` of a recording is read to make ours. The form is
`sched-oracle/1`: one turn = arrivals, aborts, schedule(), aborts during the step, update_from_output().
"""

from __future__ import annotations

import gzip
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.core.batch import batch
from sim.core.cohort import FOREVER
from sim.core.engine import EngineCore
from sim.core.observer import Observer
from sim.core.plan import BatchPlan
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE, VllmV1
from sim.kv.content import Content

COMPARED = [
    "step",
    "arrived",
    "aborted_before",
    "aborted_during",
    "free_before",
    "queue_before",
    "sched",
    "total",
    "preempted",
    "alloc_failed",
    "evicted",
    "notified_finished",
    "free_after_schedule",
    "running_after_schedule",
    "waiting_after_schedule",
    "updated_step",
    "emitted",
    "finished",
    "free_after",
    "running_after",
    "waiting_after",
    "computed_after",
]
"""Keys of a turn that must agree where the recording has them."""


class NotCovered(Exception):
    """A recording of something that is not built yet; the text says what."""


class BadRecording(ValueError):
    """A file that is not a recording of a form we know."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came out of one recording."""

    engine: str
    scenario: str
    steps: int
    """Turns compared, up to and including the first that differs."""
    difference: str | None
    """`step 12: free_after is 7, recorded 8`; None if all agree."""
    not_covered: str | None = None


def load(path: Path) -> dict[str, Any]:
    """Read a recording, gzip or plain. Raises BadRecording."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    try:
        recording = json.loads(data)
    except ValueError as error:
        raise BadRecording(f"{path.name}: not JSON: {error}") from None
    if not isinstance(recording, dict):
        raise BadRecording(f"{path.name}: a recording is a JSON object")
    return recording


def engine_of(recording: dict[str, Any]) -> str | None:
    """Which engine was recorded, by the form of the file; None if it is no recording."""
    if {"config", "requests", "aborts", "steps"} <= recording.keys():
        return VllmV1.preset
    if "engine" in recording and "scenarios" in recording:
        return str(recording["engine"])
    return None


# -- our own log


def vllm_v1_config(config: dict[str, Any]) -> VllmV1:
    """The preset's flags for a recording's `config`. Raises NotCovered."""
    if config["spec"]:
        raise NotCovered("speculation")
    if any(group["type"] != "full" for group in config["kv_groups"]):
        raise NotCovered("sliding windows")
    return VllmV1(
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_num_seqs=config["max_num_seqs"],
        max_num_active_seqs=config["max_num_active_seqs"],
        block_size=config["block_size"],
        num_gpu_blocks_override=config["num_gpu_blocks"],
        enable_prefix_caching=config["enable_prefix_caching"],
        enable_chunked_prefill=config["enable_chunked_prefill"],
        long_prefill_token_threshold=config["long_prefill_token_threshold"],
        long_prefill_token_threshold_adaptive=config["long_prefill_token_threshold_adaptive"],
        scheduler_reserve_full_isl=config["scheduler_reserve_full_isl"],
        watermark=config["watermark"],
        scheduling_policy=config["policy"],
        async_scheduling=config["async_scheduling"],
        max_model_len=config["max_model_len"],
    )


class Recorder(Observer):
    """Remembers, for one turn, who got tokens and who ended."""

    def __init__(self) -> None:
        self.finished: list[list[str]] = []
        self.unnotified: set[str] = set()

    def ended(self, request: Request, reason: str, detail: str) -> None:
        self.unnotified.add(request.id)
        if reason in ("length", "stop"):
            self.finished.append([request.id, reason])


class Loop:
    """The recorder's engine loop around our core: turns are counted, nothing is timed."""

    def __init__(self, recording: dict[str, Any], *, max_stretch: int = FOREVER) -> None:
        config = vllm_v1_config(recording["config"])
        self.recorder = Recorder()
        self.core = EngineCore(config.spec(UNKNOWN_HARDWARE), self.recorder, max_stretch=max_stretch)
        self.depth = self.core.spec.depth
        self.arrivals = deque(recording["requests"])
        self.aborts = deque(recording["aborts"])
        ranks = sorted({row["arrival_time"] for row in recording["requests"]})
        self.arrival_rank = {time: rank for rank, time in enumerate(ranks)}
        self.live: dict[str, Request] = {}
        self.planned: deque[tuple[int, BatchPlan | None, list[str]]] = deque()
        """Turns whose output has not been processed: (step, plan, ids that emit)."""

    @property
    def has_requests(self) -> bool:
        return bool(self.live or self.recorder.unnotified)

    def turns(self) -> Iterator[dict[str, Any]]:
        step = 0
        while True:
            turn: dict[str, Any] = {"step": step, "arrived": [], "aborted_before": [], "aborted_during": []}
            self._arrive(turn)
            self._abort(turn, "before_schedule", "aborted_before")
            if not self.has_requests and not self.planned:
                if not self.arrivals:
                    if turn["arrived"] or turn["aborted_before"]:
                        yield turn
                    return
                if not turn["aborted_before"]:
                    step = max(step, self.arrivals[0]["arrival_step"])
                    continue
            self._schedule(turn)
            self._abort(turn, "during_step", "aborted_during")
            self._update(turn)
            yield turn
            step += 1

    def _arrive(self, turn: dict[str, Any]) -> None:
        while self.arrivals and self.arrivals[0]["arrival_step"] <= turn["step"]:
            row = self.arrivals.popleft()
            ids = tuple(row["block_ids"] or ())
            request = Request(
                row["id"],
                prompt_tokens=row["prompt_len"],
                max_tokens=row["output_len"],
                arrival_ns=self.arrival_rank[row["arrival_time"]],
                priority=row["priority"],
                content=Content(ids, shared_blocks=len(ids), owner=0),
            )
            self.live[request.id] = request
            self.core.submit(request, stop_after=row["output_len"])
            turn["arrived"].append(request.id)

    def _abort(self, turn: dict[str, Any], when: str, key: str) -> None:
        step = turn["step"]
        while self.aborts and (
            (self.aborts[0]["step"], self.aborts[0]["when"]) == (step, when)
            or (self.aborts[0]["step"] < step and when == "before_schedule")
        ):
            request = self.live.pop(self.aborts.popleft()["id"], None)
            if request is not None:
                status = "PREEMPTED" if request.preemptions else "WAITING"
                turn[key].append([request.id, "RUNNING" if request in self.core.running else status])
                self.core.cancel(request)

    def _schedule(self, turn: dict[str, Any]) -> None:
        core = self.core
        turn["free_before"] = core.store.free_blocks
        turn["queue_before"] = {"running": _ids(core.running), "waiting": _ids(core.waiting)}
        if not self.has_requests:
            self.scheduled = None
            return
        evictions: list[int] = []
        core.store.evictions = evictions
        plan = core.plan_step()
        rows = batch(core, plan) if plan is not None else []
        turn["sched"] = [
            {
                "id": row.request.id,
                "kind": row.kind,
                "n": row.tokens,
                "computed": row.context,
                "hit": row.hit_tokens,
                "new_blocks": [row.new_blocks],
                "held": [row.held_blocks],
            }
            for row in rows
        ]
        turn["total"] = sum(row.tokens for row in rows)
        turn["preempted"] = _ids(plan.preempted) if plan is not None else []
        turn["alloc_failed"] = _ids(plan.refused if plan is not None else core.latest_draft.refused)
        turn["evicted"] = [[key, 0] for key in evictions]
        turn["notified_finished"] = sorted(self.recorder.unnotified)
        self.recorder.unnotified.clear()
        turn["free_after_schedule"] = core.store.free_blocks
        turn["running_after_schedule"] = _ids(core.running)
        turn["waiting_after_schedule"] = _ids(core.waiting)
        emitting = [row.request.id for row in rows if row.emits]
        self.scheduled = plan
        self.planned.append((turn["step"], plan, emitting))

    def _update(self, turn: dict[str, Any]) -> None:
        scheduled_something = turn.get("total", 0) > 0
        waits = "sched" in turn and len(self.planned) < self.depth and (scheduled_something or self.has_requests)
        turn.update(updated_step=None, emitted={}, finished=[])
        if self.planned and not waits:
            step, plan, emitting = self.planned.popleft()
            turn["updated_step"] = step
            turn["emitted"] = {id: 1 for id in emitting if id in self.live}
            self.recorder.finished = []
            if plan is not None:
                self.core.cut(plan, 1)
                self.core.commit_step(plan, 1)
            turn["finished"] = self.recorder.finished
            for id, _ in turn["finished"]:
                del self.live[id]
        core = self.core
        turn["free_after"] = core.store.free_blocks
        turn["running_after"] = _ids(core.running)
        turn["waiting_after"] = _ids(core.waiting)
        turn["computed_after"] = {request.id: request.computed_tokens for request in core.running}


def _ids(requests: Any) -> list[str]:
    return [request.id for request in requests]


def emit(recording: dict[str, Any], *, max_stretch: int = FOREVER) -> dict[str, Any]:
    """Our own recording of the same scenario, in the same form. Raises NotCovered."""
    inputs = {key: recording[key] for key in ("config", "requests", "aborts")}
    return {**inputs, "steps": list(Loop(recording, max_stretch=max_stretch).turns())}


# -- the comparison


def compare(recorded: dict[str, Any], ours: dict[str, Any]) -> tuple[int, str | None]:
    """Steps compared, and the first difference in words (None: no difference)."""
    for number, (theirs, mine) in enumerate(zip(recorded["steps"], ours["steps"], strict=False), start=1):
        for key in COMPARED:
            if key in theirs:
                expected, got = _comparable(key, theirs[key]), mine.get(key)
                if got != expected:
                    return number, f"step {theirs['step']}: {key} is {_short(got)}, recorded {_short(expected)}"
    if len(recorded["steps"]) != len(ours["steps"]):
        return len(recorded["steps"]), f"{len(ours['steps'])} turns, recorded {len(recorded['steps'])}"
    return len(recorded["steps"]), None


def _comparable(key: str, value: Any) -> Any:
    """Drop from scheduled rows what only speculation uses."""
    if key != "sched":
        return value
    return [{name: row[name] for name in row if name not in ("spec", "padded")} for row in value]


def _short(value: Any, limit: int = 300) -> str:
    text = json.dumps(value)
    return text if len(text) <= limit else text[:limit] + " ..."


def check(path: Path) -> Comparison:
    """Compare one recording. Raises BadRecording; what is not built comes back as not covered."""
    recording = load(path)
    scenario = path.name.removesuffix(".gz").removesuffix(".json")
    engine = engine_of(recording)
    if engine is None:
        raise BadRecording(f"{path.name}: not a recording of a form we know")
    if engine != VllmV1.preset:
        return Comparison(engine, scenario, 0, None, f"{len(recording['scenarios'])} scenarios, engine not built yet")
    try:
        ours = emit(recording)
    except NotCovered as what:
        return Comparison(engine, scenario, 0, None, str(what))
    steps, difference = compare(recording, ours)
    return Comparison(engine, scenario, steps, difference)
