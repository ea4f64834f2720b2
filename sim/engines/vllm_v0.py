"""vLLM V0 (0.6.6.post1): prefills before decodes, or chunked beside them; preemption by recompute or swap.

Rules and defaults: vLLM 0.6.6.post1 `vllm/core/scheduler.py`, `core/block_manager.py`, `engine/arg_utils.py`, one
sequence per request. Decisions agree with the recordings in tests/golden step for step. Not built: delay_factor,
multi-step scheduling, speculation, beam search, LoRA.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from sim.core.admit import BLOCKS_ARE_THERE, BUDGET_IS_OPEN, GRANT_CHUNK, SLOT_IS_FREE, Admit, nothing_swapped
from sim.core.passes import Advance, Pass, Run
from sim.core.regroup import Regroup
from sim.core.spec import EngineSpec
from sim.core.swap import SwapIn
from sim.core.urgency import YieldToUrgent
from sim.core.whole_prompt import CAN_EVER_START, MATCH_WHOLE_PROMPT, no_longer_than
from sim.engines.config import ENGINES, EngineConfig, Hardware, block_store
from sim.policies.budget import ListOrder
from sim.policies.order import Fcfs
from sim.policies.preemption import Newest
from sim.policies.watermark import Watermark
from sim.policies.whole_blocks import WholeBlocks
from workloads.config import wrong

LONG_MODEL_TOKENS = 32_768
"""Models beyond this length have chunked prefill by default."""
DEFAULT_BATCH_TOKENS = 2048
GIB = 1 << 30


@ENGINES.register("vllm-v0")
class VllmV0(EngineConfig):
    """vLLM's own flag names and defaults."""

    preset: ClassVar[str] = "vllm-v0"

    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    """Tokens per step; None = 2048 with chunked prefill, else max_model_len, but at least 2048."""
    max_num_seqs: int = Field(default=256, ge=1)
    block_size: int = Field(default=16, ge=1)
    num_gpu_blocks_override: int | None = Field(default=None, ge=1)
    """Blocks in the pool. None = what the profile's device has."""
    swap_space: float = Field(default=4.0, ge=0, allow_inf_nan=False)
    """GiB of the host for swapped KV."""
    num_cpu_blocks_override: int | None = Field(default=None, ge=0)
    """Blocks on the host instead of swap_space (ours, not a vLLM flag)."""
    enable_chunked_prefill: bool | None = None
    """None = on for models longer than 32,768 tokens."""
    enable_prefix_caching: bool = False
    preemption_mode: Literal["recompute", "swap"] | None = None
    """None = recompute: vLLM then swaps only requests of several sequences, which do not exist here."""
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    """With chunked prefill vLLM V0 does not look at priorities."""
    watermark: float = Field(default=0.01, ge=0, lt=1)
    """Share of all blocks that must stay free when a request is let in or swapped in (fixed in vLLM)."""
    max_model_len: int | None = Field(default=None, ge=1)
    """None = the model's longest sequence."""
    longer_than_model: Literal["reject", "clip"] = "clip"
    """A request whose prompt + max_tokens exceed max_model_len: refused, or its answer cut (ours, not a vLLM flag)."""

    @model_validator(mode="after")
    def _as_vllm_checks(self) -> Self:
        budget = self.max_num_batched_tokens
        if budget is not None and budget < self.max_num_seqs:
            raise wrong(f"max_num_batched_tokens must be >= max_num_seqs ({self.max_num_seqs}), got {budget}")
        if self.scheduling_policy == "priority" and self.preemption_mode == "swap":
            raise wrong("preemption_mode swap does not go with scheduling_policy priority: vLLM V0 loses the victims")
        return self

    def spec(self, hardware: Hardware) -> EngineSpec:
        """Raises ValueError where vLLM would not start."""
        longest = self.max_model_len or hardware.max_model_len
        chunked = self._chunked(longest)
        budget = self._budget(longest, chunked)
        blocks = self.num_gpu_blocks_override or hardware.kv_tokens // self.block_size
        whole_blocks = chunked and self.enable_prefix_caching
        return EngineSpec(
            name=self.preset,
            passes=self._chunked_passes() if chunked else self._default_passes(longest),
            order=Fcfs(),
            admission=Watermark(watermark_blocks=int(self.watermark * blocks)),
            budget=WholeBlocks(max_tokens=budget) if whole_blocks else ListOrder(max_tokens=budget, chunked=chunked),
            preemption=Newest(mode=self.preemption_mode or "recompute"),
            store=block_store(blocks, self.block_size, prefix_caching=self.enable_prefix_caching),
            host=hardware.host(self._cpu_blocks(hardware), self.block_size),
            max_running=self.max_num_seqs,
            max_model_len=longest,
            longer_than_model=self.longer_than_model,
        )

    def _chunked(self, longest: int) -> bool:
        return longest > LONG_MODEL_TOKENS if self.enable_chunked_prefill is None else self.enable_chunked_prefill

    def _budget(self, longest: int, chunked: bool) -> int:
        at_least = DEFAULT_BATCH_TOKENS if chunked else max(longest, DEFAULT_BATCH_TOKENS)
        budget = self.max_num_batched_tokens or at_least
        if budget < longest and not chunked:
            raise ValueError(
                f"max_num_batched_tokens must be >= {longest} (max_model_len) without chunks, got {budget}"
            )
        if chunked and self.enable_prefix_caching and budget % self.block_size:
            size = self.block_size
            raise ValueError(
                f"max_num_batched_tokens must be whole blocks of {size} for chunks and a cache, got {budget}"
            )
        return budget

    def _cpu_blocks(self, hardware: Hardware) -> int:
        if self.num_cpu_blocks_override is not None:
            return self.num_cpu_blocks_override
        return int(self.swap_space * GIB) // (self.block_size * hardware.kv_bytes_per_token)

    def _default_passes(self, prompt_limit: int) -> tuple[Pass, ...]:
        """Prefills, or if there are none decodes (`Scheduler._schedule_default`)."""
        tests = (no_longer_than(prompt_limit), MATCH_WHOLE_PROMPT, CAN_EVER_START)
        urgent = (YieldToUrgent(),) if self.scheduling_policy == "priority" else ()
        return (
            Admit(*tests, SLOT_IS_FREE, GRANT_CHUNK, BLOCKS_ARE_THERE, guards=(nothing_swapped,), whole_prompt=True),
            Run(),
            *urgent,
            Advance(spare_blocks=1),
            SwapIn(),
            Run(),
        )

    def _chunked_passes(self) -> tuple[Pass, ...]:
        """All kinds in one step (`Scheduler._schedule_chunked_prefill`); new prompts also while others are swapped."""
        tests = (MATCH_WHOLE_PROMPT, CAN_EVER_START, SLOT_IS_FREE, BUDGET_IS_OPEN, GRANT_CHUNK, BLOCKS_ARE_THERE)
        return (
            Advance(spare_blocks=1, spare_for_prefills=True),
            SwapIn(),
            Admit(*tests, guards=(), whole_prompt=True),
            Regroup(),
            Run(),
        )
