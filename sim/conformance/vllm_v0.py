"""vLLM V0: our core driven as the recorder drove vLLM's scheduler (tests/golden/FORMAT.md).

One step of the log is one turn = arrivals, schedule(), outputs. Nothing is timed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

from sim.conformance.recorder import RECORDERS, Log, Recorder
from sim.conformance.workload import Arrivals, Prompts
from sim.core.cohort import FOREVER
from sim.core.engine import EngineCore
from sim.core.lifecycle import State
from sim.core.observer import Observer
from sim.core.plan import BatchPlan, Item
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE
from sim.engines.vllm_v0 import VllmV0


@RECORDERS.register(VllmV0.preset)
class VllmV0Recorder(Recorder):
    compared: ClassVar[tuple[str, ...]] = (
        "step",
        "scheduled",
        "num_prefill_groups",
        "num_batched_tokens",
        "preempted_count",
        "preempted_ids",
        "swap_out_blocks",
        "swap_in_blocks",
        "ignored",
        "free_blocks_after",
        "waiting",
        "running",
        "swapped",
        "finished",
        "unfinished",
    )
    unverified: ClassVar[tuple[str, ...]] = (
        "the priority policy",
        "no prefill while somebody is swapped",
        "a prompt waiting for a step that it fits whole",
        "list order with chunked prefill where a prefill stands before a decode or somebody comes back",
        "every effect of a hit (cached tokens count as scheduled here)",
        "known to differ, by vLLM's source: requests of one step share blocks; chunks can be hit before they are"
        " computed; a swapped prompt comes back whole or never; a full host stops the engine",
    )

    def emit(self, input: dict[str, Any], *, max_stretch: int = FOREVER) -> Log:
        loop = Loop(input, max_stretch=max_stretch)
        steps = list(loop.turns(input["steps"]))
        return {"steps": steps, "unfinished": sorted(_ids(loop.live))}


def preset(config: dict[str, Any]) -> VllmV0:
    """The preset's flags for a recording's input."""
    return VllmV0(
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_num_seqs=config["max_num_seqs"],
        block_size=config["block_size"],
        num_gpu_blocks_override=config["num_gpu_blocks"],
        num_cpu_blocks_override=config.get("num_cpu_blocks", 0),
        enable_chunked_prefill=config.get("chunked_prefill", False),
        enable_prefix_caching=config.get("prefix_caching", False),
        preemption_mode=config.get("preemption_mode"),
        max_model_len=config["max_model_len"],
    )


class Listener(Observer):
    """Remembers, for one turn, who ended."""

    def __init__(self) -> None:
        self.ended_now: list[Request] = []

    def ended(self, request: Request, reason: str, detail: str) -> None:
        self.ended_now.append(request)


class Loop:
    """The recorder's engine loop around our core."""

    def __init__(self, input: dict[str, Any], *, max_stretch: int = FOREVER) -> None:
        # The recorder adds requests behind the API server, which would have refused the longest.
        spec = replace(preset(input).spec(UNKNOWN_HARDWARE), max_model_len=UNKNOWN_HARDWARE.max_model_len)
        self.listener = Listener()
        self.core = EngineCore(spec, self.listener, max_stretch=max_stretch)
        self.arrivals = Arrivals(input["requests"])
        self.prompts = Prompts(spec.store().block_tokens)
        self.live: dict[Request, None] = {}

    def turns(self, most: int) -> Iterator[dict[str, Any]]:
        for step in range(most):
            for row in self.arrivals.due(step):
                self._submit(row, step)
            if not self.live and not self.arrivals:
                return
            yield self._turn(step)

    def _submit(self, row: dict[str, Any], step: int) -> None:
        request = self.prompts.request(row, arrival_ns=step)
        self.live[request] = None
        self.core.submit(request, stop_after=row["max_new_tokens"])

    def _turn(self, step: int) -> dict[str, Any]:
        core = self.core
        plan = core.plan_step(step)
        draft = core.latest_draft
        scheduled = [] if plan is None else list(_batch(core, plan))
        prefills = [row for row in scheduled if row["prefill"]]
        readmitted = [item.request for item in draft.items if item.admitted]
        preempted = [request for request in draft.preempted if request not in readmitted]
        turn = {
            "step": step,
            "scheduled": scheduled,
            "num_prefill_groups": len(prefills),
            "num_batched_tokens": sum(row["tokens"] for row in scheduled),
            "preempted_count": len(draft.preempted),
            "preempted_ids": sorted(_ids(preempted)),
            "swap_out_blocks": draft.swapped_out_blocks,
            "swap_in_blocks": draft.swapped_in_blocks,
            "ignored": _ids(self._ended()),
            "free_blocks_after": core.store.free_blocks,
            "waiting": _ids(core.waiting),
            "running": _ids(core.running),
            "swapped": _ids(core.swapped),
        }
        if plan is not None:
            core.cut(plan, 1)
            core.commit_step(plan, 1)
        return {**turn, "finished": _ids(one for one in self._ended() if one.state is State.FINISHED)}

    def _ended(self) -> list[Request]:
        """Since this was last asked."""
        ended, self.listener.ended_now = self.listener.ended_now, []
        for request in ended:
            self.live.pop(request, None)
        return ended


def _batch(core: EngineCore, plan: BatchPlan) -> Iterator[dict[str, Any]]:
    """New prefills, unfinished ones, decodes, and decodes that have just been swapped in."""
    came_back = core.latest_draft.swapped_in
    for item in sorted(plan.items, key=lambda item: not item.admitted):
        yield _chunk(item)
    decodes = [request for request in core.running if request.decoding and _decodes(plan, request)]
    for request in sorted(decodes, key=lambda request: request in came_back):
        before = request.computed_tokens - 1
        yield {"id": int(request.id), "tokens": 1, "computed_before": before, "prefill": False}


def _decodes(plan: BatchPlan, request: Request) -> bool:
    in_chunk = any(item.request is request for item in plan.items)
    return not in_chunk and plan.decode_requests > 0 and (plan.decodes is None or request in plan.decodes)


def _chunk(item: Item) -> dict[str, Any]:
    """Cached tokens count as scheduled: vLLM V0 finds out behind its scheduler that they need not be computed."""
    before = item.context - item.hit_tokens
    return {
        "id": int(item.request.id),
        "tokens": item.tokens + item.hit_tokens,
        "computed_before": before,
        "prefill": True,
    }


def _ids(requests: Iterable[Request]) -> list[int]:
    return [int(request.id) for request in requests]
