"""vLLM V1 (0.32.0): one token counter per request, decodes without privilege, preemption by recompute.

Rules and defaults: vLLM 0.32.0 `vllm/v1/core`, as an API server on a GPU of at least 70 GiB runs it. Decisions agree
with the recordings in tests/golden step for step; speculation and sliding windows are not built yet.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from sim.core.admit import BLOCKS_ARE_THERE, BUDGET_IS_OPEN, GRANT_CHUNK, MATCH_PREFIX, SLOT_IS_FREE, Admit
from sim.core.passes import Advance, Run
from sim.core.spec import EngineSpec
from sim.engines.config import ENGINES, EngineConfig, Hardware, block_store
from sim.policies.admission import Optimistic
from sim.policies.budget import ListOrder
from sim.policies.order import Fcfs, Priority
from sim.policies.preemption import LeastUrgent, Newest


@ENGINES.register("vllm-v1")
class VllmV1(EngineConfig):
    """vLLM's own flag names; defaults of its API server."""

    preset: ClassVar[str] = "vllm-v1"

    max_num_batched_tokens: int = Field(default=8192, ge=1)
    """Tokens per step (16,384 in the offline LLM class). Without chunked prefill at least max_model_len: the default
    grows to it, a smaller value is refused."""
    max_num_seqs: int = Field(default=1024, ge=1)
    max_num_active_seqs: int | None = Field(default=None, ge=1)
    """Running requests at most; None = max_num_seqs."""
    block_size: int = Field(default=16, ge=1)
    num_gpu_blocks_override: int | None = Field(default=None, ge=2)
    """Blocks in the pool; one of them is vLLM's null block and holds nothing. None = what the profile's device has."""
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = Field(default=0, ge=0)
    """The most tokens of one request in a step while others are there; 0 = off."""
    long_prefill_token_threshold_adaptive: bool = False
    scheduler_reserve_full_isl: bool = True
    """A request starts only if its whole known sequence fits the free blocks."""
    watermark: float = Field(default=0.0, ge=0, lt=1)
    """Share of all blocks that must stay free when a request is admitted while others run."""
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    async_scheduling: bool = True
    max_model_len: int | None = Field(default=None, ge=1)
    """None = the model's longest sequence."""
    longer_than_model: Literal["reject", "clip"] = "clip"
    """A request whose prompt + max_tokens exceed max_model_len: refused, or its answer cut (ours, not a vLLM flag)."""

    def spec(self, hardware: Hardware) -> EngineSpec:
        blocks = self.num_gpu_blocks_override or hardware.kv_tokens // self.block_size + 1
        by_priority = self.scheduling_policy == "priority"
        longest = self.max_model_len or hardware.max_model_len
        return EngineSpec(
            name=self.preset,
            passes=(
                Advance(),
                Admit(BUDGET_IS_OPEN, SLOT_IS_FREE, MATCH_PREFIX, GRANT_CHUNK, BLOCKS_ARE_THERE),
                Run(),
            ),
            order=Priority() if by_priority else Fcfs(),
            admission=Optimistic(
                watermark_blocks=int(self.watermark * blocks), full_sequence=self.scheduler_reserve_full_isl
            ),
            budget=ListOrder(
                max_tokens=self._step_tokens(longest),
                chunk_cap=self.long_prefill_token_threshold,
                adaptive_cap=self.long_prefill_token_threshold_adaptive,
                chunked=self.enable_chunked_prefill,
            ),
            preemption=LeastUrgent() if by_priority else Newest(),
            store=block_store(blocks - 1, self.block_size, prefix_caching=self.enable_prefix_caching),
            max_running=self.max_num_active_seqs or self.max_num_seqs,
            max_model_len=longest,
            longer_than_model=self.longer_than_model,
            depth=2 if self.async_scheduling else 1,
        )

    def _step_tokens(self, longest: int) -> int:
        """Source: `SchedulerConfig.verify_max_model_len`; ValueError as there."""
        tokens = self.max_num_batched_tokens
        if self.enable_chunked_prefill or tokens >= longest:
            return tokens
        if "max_num_batched_tokens" in self.model_fields_set:
            raise ValueError(
                f"max_num_batched_tokens must be >= {longest} (max_model_len) without chunked prefill, got {tokens}"
            )
        return longest
