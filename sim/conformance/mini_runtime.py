"""mini-runtime: our core driven as the recorder drove its Engine on a virtual clock (tests/golden/FORMAT.md).

One step of the log is one iteration = arrivals, admission and prefill forward, decode forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

from sim.conformance.mini_runtime_books import Books, OwnedBlocks, Times, seconds
from sim.conformance.recorder import RECORDERS, Log, Recorder
from sim.conformance.workload import Arrivals, Prompts
from sim.core.cohort import FOREVER
from sim.core.engine import EngineCore
from sim.core.plan import BatchPlan
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE
from sim.engines.mini_runtime import MiniRuntime

PREFILL_NS, PREFILL_TOKEN_NS = 2_000_000, 10_000
DECODE_NS, DECODE_REQUEST_NS = 1_000_000, 100_000
"""The virtual clock: what a forward costs. A decode call without anybody costs DECODE_NS as well."""


@RECORDERS.register(MiniRuntime.preset)
class MiniRuntimeRecorder(Recorder):
    compared: ClassVar[tuple[str, ...]] = (
        "step",
        "t",
        "waiting_before",
        "admitted",
        "admit_evictions",
        "admit_oom",
        "prefill",
        "decode",
        "decode_evictions",
        "decode_oom",
        "finished",
        "after",
        "results",
        "never_resolved",
    )
    printed: ClassVar[tuple[str, ...]] = ("metrics",)
    unverified: ClassVar[tuple[str, ...]] = (
        "timeouts and cancels",
        "the slot limit",
        "an end token that comes first (here the second token ends such an answer)",
        "a cached prompt when the prefill budget is used up",
        "evictions that make room for a prompt (they were all in vain)",
        "tree defects (a) and (c)",
    )

    def emit(self, input: dict[str, Any], *, max_stretch: int = FOREVER) -> Log:
        loop = Loop(input, max_stretch=max_stretch)
        steps = list(loop.turns())
        return {"steps": steps, **loop.books.summary(loop.core.peak_used_blocks)}

    def comparable(self, log: Log) -> Log:
        """Times of answers to the microsecond, as they were recorded."""
        answers = {id: _rounded(answer) for id, answer in log["results"].items()}
        return {**log, "results": answers}


def _rounded(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in answer.items()}


class Loop:
    """The recorder's loop around our core."""

    def __init__(self, input: dict[str, Any], *, max_stretch: int = FOREVER) -> None:
        config = MiniRuntime(
            max_batch_size=input["max_batch_size"],
            num_blocks=input["num_blocks"],
            block_size=input["block_size"],
            max_tokens_per_prefill_chunk=input.get("max_chunk", 1024),
            max_tokens_per_prefill_step=input.get("step_budget", 8192),
        )
        self.store = store = OwnedBlocks(config.num_blocks, config.block_size, config.tree_defects)
        self.books = Books(store)
        spec = replace(config.spec(UNKNOWN_HARDWARE), store=lambda: store)
        self.core = EngineCore(spec, self.books, max_stretch=max_stretch)
        self.arrivals = Arrivals(input["requests"])
        self.prompts = Prompts()
        self.most_steps: int = input["steps"]

    def turns(self) -> Iterator[dict[str, Any]]:
        for step in range(self.most_steps):
            if not self.arrivals and self.core.idle:
                return
            yield self._turn(step)
            self.core.check_invariants()

    def _turn(self, step: int) -> dict[str, Any]:
        core, books = self.core, self.books
        self._submit(step)
        books.begin(core.cohort.size)
        turn: dict[str, Any] = {"step": step, "t": seconds(books.now_ns), "waiting_before": len(core.waiting)}
        plan = core.plan_step()
        turn["admitted"] = [self._admitted(request) for request in books.admitted_now]
        turn["admit_oom"] = len(books.lost_now)
        turn["prefill"] = []
        if plan is not None and plan.items:
            books.scanned()
            turn["prefill"] = self._prefill(plan)
            plan = core.plan_step() if core.cohort.size else None
        turn["admit_evictions"] = books.evictions_now
        turn["decode"] = self._decode(plan)
        turn["decode_evictions"] = self.store.take_reclaims()
        turn["decode_oom"] = len(books.failed_now)
        turn["finished"] = _ids(books.finished_now)
        turn["after"] = {
            "waiting": len(core.waiting),
            "prefilling": _ids(core.prefilling),
            "running": _ids(request for request in core.running if request.decoding),
            "free": self.store.free_blocks,
            "used": core.used_blocks,
        }
        return turn

    def _submit(self, step: int) -> None:
        for row in self.arrivals.due(step):
            request = self.prompts.request(row)
            self.books.times[row["id"]] = Times(submitted=self.books.now_ns)
            self.core.submit(request, stop_after=row.get("eos_at", row["max_new_tokens"]))

    def _admitted(self, request: Request) -> dict[str, Any]:
        return {
            "id": int(request.id),
            "matched_tokens": request.hit_tokens,
            "matched_offset": self.store.offset_tokens,
            "blocks": self.store.table(request),
        }

    def _prefill(self, plan: BatchPlan) -> list[dict[str, Any]]:
        rows = [
            {
                "id": int(item.request.id),
                "start": item.context,
                "end": item.context + item.tokens,
                "last": item.emits,
                "blocks": self.store.table(item.request),
                "offset": self.store.offset_tokens,
                "cached_blocks": self.core.blocks(item.request.hit_tokens),
            }
            for item in plan.items
        ]
        books = self.books
        books.prefill_batches += 1
        books.now_ns += PREFILL_NS + PREFILL_TOKEN_NS * sum(item.tokens for item in plan.items)
        self.core.commit_step(plan, 1)
        return rows

    def _decode(self, plan: BatchPlan | None) -> list[dict[str, Any]]:
        core, books = self.core, self.books
        rows: list[dict[str, Any]] = []
        if plan is not None:
            served = [each for each in core.running if each.decoding and (plan.decodes is None or each in plan.decodes)]
            rows = [{"id": int(request.id), "blocks": self.store.table(request)} for request in served]
            books.decode_steps += 1
            books.active += len(rows) + len(books.failed_now)
            core.cut(plan, 1)
            core.commit_step(plan, 1)
        books.now_ns += DECODE_NS + DECODE_REQUEST_NS * len(rows)
        return rows


def _ids(requests: Iterable[Request]) -> list[int]:
    return [int(request.id) for request in requests]
