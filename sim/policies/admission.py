"""Admission: who may start, by resources. Conventions N2 and N5 of the worked cases."""

from __future__ import annotations

from sim.core.admit import NO_BLOCKS
from sim.core.cohort import FOREVER
from sim.core.plan import ADMIT, BatchPlan, Blocker, Decision, defer, reject
from sim.core.request import Request
from sim.kv.store import Hit
from sim.policies.protocols import AdmissionPolicy, EngineView
from sim.policies.registry import ADMISSION

NO_RESERVATION = defer(Blocker.BLOCKS, "reservation does not fit")


@ADMISSION.register("optimistic")
class Optimistic(AdmissionPolicy):
    """Admit on what is known now, and preempt when growth does not fit (vLLM).

    `full_sequence`: the whole known sequence must fit, not only the first chunk; nothing is reserved for it.
    `watermark_blocks`: stay free when somebody is admitted while others run.
    """

    def __init__(self, watermark_blocks: int = 0, full_sequence: bool = True) -> None:
        if watermark_blocks < 0:
            raise ValueError(f"watermark_blocks must be >= 0, got {watermark_blocks}")
        self.watermark_blocks = watermark_blocks
        self.full_sequence = full_sequence

    def feasible(self, engine: EngineView, request: Request) -> Decision:
        """The prompt alone must fit the empty pool."""
        need, total = engine.blocks(request.prompt_tokens), engine.pool_blocks
        if need > total:
            most = engine.blocks(engine.final_kv_tokens(request))
            return reject(
                "prompt > KV",
                f"needs {need} blocks for the prompt alone ({most} with all its output), the pool has {total}",
            )
        return ADMIT

    def decide(self, engine: EngineView, request: Request, hit: Hit, chunk_blocks: int) -> Decision:
        # Hits that nobody references now are in the free list: taking them costs as much as taking blank blocks (B4).
        blocks = engine.blocks(request.known_tokens) if self.full_sequence else chunk_blocks
        need = blocks - hit.blocks + hit.free_blocks
        margin = self.watermark_blocks if engine.running else 0
        return NO_BLOCKS if need + margin > engine.store.free_blocks else ADMIT

    def steady_steps(self, engine: EngineView, plan: BatchPlan) -> int:
        """What is free falls with every block taken. A first chunk's need falls with it if its own hit is evicted.

        Block by block both fall alike; where whole runs go, the need may fall faster.
        """
        return 1 if engine.store.evicts_runs and not self.full_sequence else FOREVER


@ADMISSION.register("conservative")
class Conservative(AdmissionPolicy):
    """Reserve the most a request can ever need, prompt + max_tokens, and never preempt.

    `margin_blocks`: never promised to anybody.
    """

    def __init__(self, margin_blocks: int = 0) -> None:
        if margin_blocks < 0:
            raise ValueError(f"margin_blocks must be >= 0, got {margin_blocks}")
        self.margin_blocks = margin_blocks

    def reservation(self, engine: EngineView, request: Request) -> int:
        return engine.blocks(engine.final_kv_tokens(request))

    def feasible(self, engine: EngineView, request: Request) -> Decision:
        need = self.reservation(engine, request)
        total = engine.pool_blocks - self.margin_blocks
        if need > total:
            prompt = engine.blocks(request.prompt_tokens)
            return reject(
                "reservation > KV",
                f"needs {need} blocks for prompt + max_tokens ({prompt} for the prompt alone), the pool has {total}",
            )
        return ADMIT

    def decide(self, engine: EngineView, request: Request, hit: Hit, chunk_blocks: int) -> Decision:
        promised = engine.reserved_blocks + self.reservation(engine, request) + self.margin_blocks
        return NO_RESERVATION if promised > engine.store.total_blocks else ADMIT

    def steady_steps(self, engine: EngineView, plan: BatchPlan) -> int:
        return FOREVER
