"""TensorRT-LLM: a capacity scheduler says who may run, a micro-batch scheduler what each computes in the step.

Rules: NVIDIA/TensorRT-LLM `pyexecutor/scheduler/scheduler.py` (2026 main) and the block formulas of
`kvCacheManager.cpp`; defaults: its LLM API. Decisions agree with the recordings in tests/golden step for step. Not
built: block reuse, attention windows, beams, drafts, pipeline parallelism (with its two-step lookahead).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from sim.core.admit import BLOCKS_ARE_THERE, Guard, Test
from sim.core.pack import Pack
from sim.core.passes import Run
from sim.core.select import Select, nothing_decodes
from sim.core.spec import EngineSpec
from sim.core.split import InTurn, SideBySide, Split, whole
from sim.core.whole_prompt import no_longer_than
from sim.engines.config import ENGINES, EngineConfig, Hardware, block_store
from sim.policies.admission import Optimistic
from sim.policies.arrival import Arrival
from sim.policies.budget import DecodeFirst, ListOrder
from sim.policies.completion import ReserveToCompletion
from sim.policies.preemption import Newest, NoPreemption
from workloads.config import wrong


class TrtLlm(EngineConfig):
    """TensorRT-LLM's own flag names; defaults of its LLM API. The capacity scheduler's policy makes the preset."""

    max_batch_size: int = Field(default=2048, ge=1)
    """Requests per step."""
    max_num_tokens: int = Field(default=8192, ge=1)
    """Tokens per step."""
    max_num_requests: int | None = Field(default=None, ge=1)
    """Requests that the capacity scheduler lets run; None = max_batch_size, as without pipeline parallelism."""
    max_num_active_requests: int | None = Field(default=None, ge=1)
    """Requests taken out of the executor's queue at most, running ones included; None = max_num_requests."""
    tokens_per_block: int = Field(default=32, ge=1)
    num_blocks: int | None = Field(default=None, ge=1)
    """Blocks of the primary pool. None = what the profile's device has."""
    enable_chunked_prefill: bool = False
    chunking_policy: Literal["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"] = "FIRST_COME_FIRST_SERVED"
    """With chunked prefill: who gets what the generation leaves of the tokens."""
    chunk_unit_size: int | None = Field(default=None, ge=1)
    """A chunk that does not end its prompt is a multiple of it; None = tokens_per_block."""
    max_seq_len: int | None = Field(default=None, ge=1)
    """Prompt and answer together; answers are cut at it. None = the model's longest sequence."""

    @model_validator(mode="after")
    def _chunks_fit_a_step(self) -> Self:
        if self.enable_chunked_prefill and self._unit_tokens > self.max_num_tokens:
            raise wrong(f"chunk_unit_size must be <= max_num_tokens ({self.max_num_tokens}), got {self._unit_tokens}")
        return self

    @property
    def _unit_tokens(self) -> int:
        return self.chunk_unit_size or self.tokens_per_block

    def _spec(self, hardware: Hardware, *, guards: tuple[Guard, ...] = (), **policies: Any) -> EngineSpec:
        running = self.max_num_requests or self.max_batch_size
        return EngineSpec(
            name=self.preset,
            passes=(
                Select(*self._tests(), guards=guards),
                Pack(max_batch=self.max_batch_size, split=self._split()),
                Run(),
            ),
            order=Arrival(),
            store=block_store(
                self.num_blocks or hardware.kv_tokens // self.tokens_per_block,
                self.tokens_per_block,
                prefix_caching=False,
            ),
            max_running=min(running, self.max_num_active_requests or running),
            max_model_len=self.max_seq_len or hardware.max_model_len,
            list_order="arrival",
            **policies,
        )

    def _tests(self) -> tuple[Test, ...]:
        """Without chunks, a prompt longer than a step can never run."""
        if self.enable_chunked_prefill:
            return (BLOCKS_ARE_THERE,)
        return no_longer_than(self.max_num_tokens), BLOCKS_ARE_THERE

    def _split(self) -> Split:
        if not self.enable_chunked_prefill:
            return whole
        return (SideBySide if self.chunking_policy == "EQUAL_PROGRESS" else InTurn)(self._unit_tokens)


@ENGINES.register("trtllm-guaranteed-no-evict")
class GuaranteedNoEvict(TrtLlm):
    """GUARANTEED_NO_EVICT, its default: who runs has room to the end of his longest answer, and is never paused."""

    preset: ClassVar[str] = "trtllm-guaranteed-no-evict"

    def spec(self, hardware: Hardware) -> EngineSpec:
        return self._spec(
            hardware,
            admission=ReserveToCompletion(),
            budget=DecodeFirst(max_tokens=self.max_num_tokens),
            preemption=NoPreemption(),
        )


@ENGINES.register("trtllm-max-utilization")
class MaxUtilization(TrtLlm):
    """MAX_UTILIZATION: only the next step must fit; else the last started request is paused, and keeps its place."""

    preset: ClassVar[str] = "trtllm-max-utilization"

    def spec(self, hardware: Hardware) -> EngineSpec:
        return self._spec(
            hardware,
            admission=Optimistic(),
            budget=ListOrder(max_tokens=self.max_num_tokens),
            preemption=Newest(),
        )


@ENGINES.register("trtllm-static-batch")
class StaticBatch(TrtLlm):
    """STATIC_BATCH: as GUARANTEED_NO_EVICT, but prompts wait, begun ones too, until nobody generates."""

    preset: ClassVar[str] = "trtllm-static-batch"

    def spec(self, hardware: Hardware) -> EngineSpec:
        return self._spec(
            hardware,
            guards=(nothing_decodes,),
            admission=ReserveToCompletion(),
            budget=DecodeFirst(max_tokens=self.max_num_tokens),
            preemption=NoPreemption(),
        )
