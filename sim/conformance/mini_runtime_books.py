"""What the recorder of mini-runtime keeps beside its decisions: what clients got, and the engine's own metrics."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sim.conformance.recorder import Log
from sim.core.lifecycle import State
from sim.core.observer import Observer
from sim.core.plan import PreemptionMode
from sim.core.request import Request
from sim.kv.leaky import LeakyTreeStore
from sim.kv.leaky_tree import TreeDefect

Evictions = list[list[int] | None]
"""The blocks of each leaf; None where there was no leaf left."""


class OwnedBlocks(LeakyTreeStore):
    """Names the owner of every block: decodes are then served one by one, in list order, as mini-runtime does."""

    def __init__(self, total_blocks: int, block_tokens: int, defects: Collection[TreeDefect]) -> None:
        super().__init__(total_blocks, block_tokens, defects=defects)
        self.reclaims = []

    def learns_from(self, request: Request) -> bool:
        return True

    def take_reclaims(self) -> Evictions:
        done, self.reclaims = self.reclaims, []
        assert done is not None
        return done


@dataclass(slots=True)
class Times:
    """When things happened to a request, in ns."""

    submitted: int
    started: int = 0
    first_token: int = 0
    finished: int | None = None
    """The start of its last decode forward: mini-runtime looks at its clock before that has run."""
    tokens: int = 0
    failed: bool = False

    def answer(self, id: int) -> dict[str, Any]:
        """What the client gets."""
        if self.finished is None:
            return {"request_id": id, "error": "OOM"}
        return {
            "request_id": id,
            "ttft": seconds(self.first_token - self.submitted),
            "tpot": seconds((self.finished - self.first_token) / self.tokens),
            "total": seconds(self.finished - self.submitted),
            "generated_tokens": self.tokens,
            "queue_wait": seconds(self.started - self.submitted),
            "service_time": seconds(self.finished - self.started),
        }


class Books(Observer):
    """mini-runtime's own metrics, and what has happened in the iteration so far."""

    def __init__(self, store: OwnedBlocks) -> None:
        self.store = store
        self.now_ns = 0
        self.times: dict[int, Times] = {}
        self.admitted_now: list[Request] = []
        self.lost_now: list[Request] = []
        self.failed_now: list[Request] = []
        self.finished_now: list[Request] = []
        self.evictions_now: Evictions = []
        """For admissions."""
        self.running_now = 0
        self.oom = self.prefill_batches = self.decode_steps = self.active = self.max_running = 0

    def begin(self, running: int) -> None:
        """An iteration begins, with so many decoding."""
        self.admitted_now, self.lost_now, self.failed_now, self.finished_now = [], [], [], []
        self.evictions_now = []
        self.running_now = running

    def scanned(self) -> None:
        """Admission is over: what was evicted up to now was for it."""
        self.evictions_now += self.store.take_reclaims()

    def admitted(self, request: Request) -> None:
        self.admitted_now.append(request)
        self.times[int(request.id)].started = self.now_ns
        self.max_running = max(self.max_running, self.running_now)

    def prefilled(self, request: Request) -> None:
        self.times[int(request.id)].first_token = self.now_ns

    def preempted(self, request: Request, lost_tokens: int, mode: PreemptionMode, asker: Request | None) -> None:
        assert mode is PreemptionMode.FAIL
        self.failed_now.append(request)
        self.oom += 1
        self.times[int(request.id)].failed = True

    def ended(self, request: Request, reason: str, detail: str) -> None:
        if request.state is State.FINISHED:
            times = self.times[int(request.id)]
            times.finished, times.tokens = self.now_ns, request.outputs
            self.finished_now.append(request)
        elif not self.times[int(request.id)].failed:
            self.lost_now.append(request)
            self.oom += 1
            self.scanned()  # a loss ends the scan

    def summary(self, peak_used_blocks: int) -> Log:
        """What the recording has beside its steps."""
        answered = {id: times for id, times in self.times.items() if times.finished is not None or times.failed}
        total = self.store.total_blocks
        used = total - self.store.free_blocks
        return {
            "results": {str(id): times.answer(id) for id, times in answered.items()},
            "never_resolved": sorted(self.times.keys() - answered.keys()),
            "metrics": {
                "submitted": len(self.times),
                **self._counts(),
                **_averages([times for times in self.times.values() if times.finished is not None]),
                "kv_cache": {
                    "allocated_blocks": used,
                    "utilization": used / total,
                    "max_allocated": peak_used_blocks,
                    "total_blocks": total,
                },
            },
        }

    def _counts(self) -> dict[str, Any]:
        return {
            "success": sum(times.finished is not None for times in self.times.values()),
            "timeout": 0,
            "cancelled": 0,
            "oom": self.oom,
            "prefill_batches": self.prefill_batches,
            "decode_steps": self.decode_steps,
            "avg_active_requests": round(self.active / max(1, self.decode_steps), 6),
            "max_running_requests": self.max_running,
        }


def _averages(answers: list[Times]) -> dict[str, float]:
    """mini-runtime's averages, over those who succeeded; a decode's time is divided by all tokens, the first too."""
    rows = [times.answer(0) for times in answers]
    service_s = sum(row["service_time"] for row in rows)

    def mean(name: str) -> float:
        total: float = sum(row[name] for row in rows)
        return round(total / max(1, len(rows)), 6)

    return {
        "avg_queue_wait": mean("queue_wait"),
        "avg_service_time": mean("service_time"),
        "avg_latency": mean("total"),
        "avg_ttft": mean("ttft"),
        "avg_tpot": mean("tpot"),
        "output_tokens_per_sec": round(sum(times.tokens for times in answers) / service_s, 6) if service_s else 0.0,
    }


def seconds(time_ns: float) -> float:
    return time_ns / 1e9
