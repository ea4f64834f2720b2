"""TensorRT-LLM: our core driven as its two schedulers were (tests/golden/FORMAT.md).

One step of the log is one iteration = arrivals, capacity scheduler, micro-batch scheduler, outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

from sim.conformance.recorder import RECORDERS, Log, NotCovered, Recorder
from sim.conformance.workload import Arrivals
from sim.core.cohort import FOREVER
from sim.core.engine import EngineCore
from sim.core.plan import BatchPlan
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE
from sim.engines.trtllm import GuaranteedNoEvict, MaxUtilization, StaticBatch, TrtLlm

PRESETS: dict[str, Callable[..., TrtLlm]] = {
    "GUARANTEED_NO_EVICT": GuaranteedNoEvict,
    "MAX_UTILIZATION": MaxUtilization,
    "STATIC_BATCH": StaticBatch,
}


@RECORDERS.register("tensorrt-llm")
class TrtLlmRecorder(Recorder):
    compared: ClassVar[tuple[str, ...]] = (
        "step",
        "active",
        "free",
        "fitting",
        "paused",
        "context",
        "generation",
        "batch_tokens",
        "finished",
    )
    unverified: ClassVar[tuple[str, ...]] = (
        "a prompt that does not fit the tokens of a step ends the scan, generation behind it included",
        "max_batch_size, max_num_requests and the cap on active requests",
        "the last token's share of a reservation",
        "chunked prompts under MAX_UTILIZATION and STATIC_BATCH",
        "block reuse, windows, beams, drafts, pipeline parallelism (not built)",
    )
    """Of the first four, tests/sim/engines/test_trtllm.py has worked-out cases, and tests/golden/test_fuzz_trtllm.py a
    plain re-statement beside which they are run."""

    def emit(self, input: dict[str, Any], *, max_stretch: int = FOREVER) -> Log:
        return {"steps": list(Loop(input, max_stretch=max_stretch).turns())}


def preset(input: dict[str, Any]) -> TrtLlm:
    """The preset and its flags for a recording's input. Raises NotCovered."""
    if input.get("two_step_lookahead"):
        raise NotCovered("two-step lookahead")
    chunking: dict[str, Any] = {}
    if input["chunking"] is not None:
        policy, unit = input["chunking"]
        chunking = {"enable_chunked_prefill": True, "chunking_policy": policy, "chunk_unit_size": unit}
    return PRESETS[input["policy"]](
        max_batch_size=input["max_batch_size"],
        max_num_tokens=input["max_num_tokens"],
        max_num_requests=input["max_num_requests"],
        max_num_active_requests=input["max_num_active"],
        tokens_per_block=input["tokens_per_block"],
        num_blocks=input["num_blocks"],
        **chunking,
    )


class Loop:
    """The recorder's loop around our core."""

    def __init__(self, input: dict[str, Any], *, max_stretch: int = FOREVER) -> None:
        config = preset(input)
        self.core = EngineCore(config.spec(UNKNOWN_HARDWARE), max_stretch=max_stretch)
        self.generation_first = not isinstance(config, MaxUtilization)
        self.most_active: int = input["max_num_active"]
        self.arrivals = Arrivals(input["requests"])
        self.most_steps: int = input["steps"]

    def turns(self) -> Iterator[dict[str, Any]]:
        step = 0
        while step < self.most_steps and (self.arrivals or not self.core.idle):
            for row in self.arrivals.due(step):
                self._submit(row)
            if not self.core.idle:
                yield self._turn(step)
            step += 1

    def _submit(self, row: dict[str, Any]) -> None:
        asked = row["max_new_tokens"]
        request = Request(str(row["id"]), prompt_tokens=row["prompt_len"], max_tokens=asked)
        self.core.submit(request, stop_after=row.get("true_output_len", asked))

    def _turn(self, step: int) -> dict[str, Any]:
        core = self.core
        active = sorted([*core.running, *core.waiting], key=lambda request: request.number)[: self.most_active]
        free = core.store.free_blocks
        decoding = [request for request in core.running if request.decoding]
        plan = core.plan_step()
        items = plan.items if plan is not None else []
        generation = _decodes(plan, decoding)
        selected = core.latest_draft.selected
        fitting = [request for request in decoding if request in core.running] + selected
        if not self.generation_first:
            fitting.sort(key=lambda request: request.number)
        context = [{"id": int(item.request.id), "chunk": item.tokens, "pos": item.context} for item in items]
        return {
            "step": step,
            "active": _ids(active),
            "free": free,
            "fitting": _ids(fitting),
            "paused": _ids(plan.preempted) if plan is not None else [],
            "context": context,
            "generation": _ids(generation),
            "batch_tokens": sum(item.tokens for item in items) + len(generation),
            "finished": self._finish(plan),
        }

    def _finish(self, plan: BatchPlan | None) -> list[int]:
        if plan is None:
            return []
        self.core.cut(plan, 1)
        return _ids(self.core.commit_step(plan, 1))


def _decodes(plan: BatchPlan | None, decoding: list[Request]) -> list[Request]:
    """Who generates in this step, of those who decoded before it."""
    if plan is None or not plan.decode_requests:
        return []
    return [request for request in decoding if (request.decoding if plan.decodes is None else request in plan.decodes)]


def _ids(requests: Iterable[Request]) -> list[int]:
    return [int(request.id) for request in requests]
