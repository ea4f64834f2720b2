"""vLLM V1: our core driven as the recorder drove vLLM's scheduler (tests/golden/vllm_v1/FORMAT.md).

One step of the log is one turn = arrivals, aborts, schedule(), aborts during the step, update_from_output().
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar

from sim.conformance.recorder import RECORDERS, Log, NotCovered, Recorder
from sim.core.batch import batch
from sim.core.cohort import FOREVER
from sim.core.engine import EngineCore
from sim.core.observer import Observer
from sim.core.plan import BatchPlan
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE, VllmV1
from sim.kv.content import Content


@RECORDERS.register(VllmV1.preset)
class VllmV1Recorder(Recorder):
    compared: ClassVar[tuple[str, ...]] = (
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
    )
    unverified: ClassVar[tuple[str, ...]] = (
        "list order without privilege for decodes",
        "an arrival behind a blocked head lowering the adaptive cap",
        "hits of tokens that a running request generated",
        "which of two equal blocks is hit",
    )
    """Rules of SEMANTICS.md that a broken core keeps in every recording; tests/golden/test_rules.py pins them."""

    def emit(self, input: dict[str, Any], *, max_stretch: int = FOREVER) -> Log:
        return {"steps": list(Loop(input, max_stretch=max_stretch).turns())}

    def comparable(self, log: Log) -> Log:
        """Drop from scheduled rows what only speculation uses."""
        return {
            "steps": [{**turn, "sched": _plain(turn["sched"])} if "sched" in turn else turn for turn in log["steps"]]
        }


def _plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in row if name not in ("spec", "padded")} for row in rows]


def preset(config: dict[str, Any]) -> VllmV1:
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


class Listener(Observer):
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

    def __init__(self, input: dict[str, Any], *, max_stretch: int = FOREVER) -> None:
        config = preset(input["config"])
        self.listener = Listener()
        self.core = EngineCore(config.spec(UNKNOWN_HARDWARE), self.listener, max_stretch=max_stretch)
        self.depth = self.core.spec.depth
        self.arrivals = deque(input["requests"])
        self.aborts = deque(input["aborts"])
        ranks = sorted({row["arrival_time"] for row in input["requests"]})
        self.arrival_rank = {time: rank for rank, time in enumerate(ranks)}
        self.live: dict[str, Request] = {}
        self.planned: deque[tuple[int, BatchPlan | None, list[str]]] = deque()
        """Turns whose output has not been processed: (step, plan, ids that emit)."""

    @property
    def has_requests(self) -> bool:
        return bool(self.live or self.listener.unnotified)

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
        turn["notified_finished"] = sorted(self.listener.unnotified)
        self.listener.unnotified.clear()
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
            self.listener.finished = []
            if plan is not None:
                self.core.cut(plan, 1)
                self.core.commit_step(plan, 1)
            turn["finished"] = self.listener.finished
            for id, _ in turn["finished"]:
                del self.live[id]
        core = self.core
        turn["free_after"] = core.store.free_blocks
        turn["running_after"] = _ids(core.running)
        turn["waiting_after"] = _ids(core.waiting)
        turn["computed_after"] = {request.id: request.computed_tokens for request in core.running}


def _ids(requests: Any) -> list[str]:
    return [request.id for request in requests]
