"""Admission by the whole known sequence and a watermark (vLLM V0)."""

from __future__ import annotations

from sim.core.admit import NO_BLOCKS
from sim.core.cohort import FOREVER
from sim.core.plan import ADMIT, BatchPlan, Decision, reject
from sim.core.request import Request
from sim.kv.store import Hit
from sim.policies.protocols import AdmissionPolicy, EngineView
from sim.policies.registry import ADMISSION


@ADMISSION.register("watermark")
class Watermark(AdmissionPolicy):
    """The whole known sequence must fit the free blocks with `watermark_blocks` to spare, hits or not (vLLM V0).

    Unlike `optimistic` it leaves the watermark also when nothing runs, counts cached blocks as if they were to be
    computed, and refuses what can never fit when it is looked at, not when it is submitted. Source: vLLM 0.6.6.post1
    `SelfAttnBlockSpaceManager.can_allocate`.
    """

    def __init__(self, watermark_blocks: int = 0) -> None:
        if watermark_blocks < 0:
            raise ValueError(f"watermark_blocks must be >= 0, got {watermark_blocks}")
        self.watermark_blocks = watermark_blocks

    def decide(self, engine: EngineView, request: Request, hit: Hit, chunk_blocks: int) -> Decision:
        need = engine.blocks(request.known_tokens) + self.watermark_blocks
        if need <= engine.store.free_blocks:
            return ADMIT
        if need > engine.pool_blocks:
            kept = f" with {self.watermark_blocks} kept free" if self.watermark_blocks else ""
            return reject("prompt > KV", f"needs {need - self.watermark_blocks} blocks{kept}, has {engine.pool_blocks}")
        return NO_BLOCKS

    def steady_steps(self, engine: EngineView, plan: BatchPlan) -> int:
        return FOREVER
