"""The preset of worked examples: decodes first, then unfinished prefills, then the queue (conventions N1-N5)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from sim.core.admit import BLOCKS_ARE_THERE, BUDGET_IS_OPEN, GRANT_CHUNK, MATCH_PREFIX, SLOT_IS_FREE, Admit
from sim.core.passes import Advance, Run
from sim.core.spec import EngineSpec
from sim.engines.config import ENGINES, EngineConfig, Hardware, block_store, tree_store
from sim.policies.admission import Conservative, Optimistic
from sim.policies.budget import UNLIMITED, DecodeFirst
from sim.policies.eviction import LruLeaf
from sim.policies.order import Fcfs, Priority
from sim.policies.preemption import LeastUrgent, Newest, NoPreemption


@ENGINES.register("reference")
class Reference(EngineConfig):
    """Plain words, no engine's quirks. Conservative admission reserves prompt + max_tokens - 1 and never preempts."""

    preset: ClassVar[str] = "reference"

    token_budget: int = Field(default=UNLIMITED, ge=1)
    chunk_cap: int = Field(default=0, ge=0)
    """The most tokens of one prompt in a step; 0 = no cap."""
    slots: int = Field(default=UNLIMITED, ge=1)
    block_size: int = Field(default=16, ge=1)
    num_blocks: int | None = Field(default=None, ge=1)
    """All of them usable. None = what the profile's device has."""
    prefix_cache: bool = False
    prefix_cache_kind: Literal["hash-chain", "radix-tree"] = "hash-chain"
    """vLLM's way, which evicts by time of release, or SGLang's, where `--eviction` says what goes first."""
    admission: Literal["optimistic", "conservative"] = "optimistic"
    full_prompt_must_fit: bool = True
    order: Literal["fcfs", "priority"] = "fcfs"
    max_model_len: int | None = Field(default=None, ge=1)
    longer_than_model: Literal["reject", "clip"] = "clip"

    def spec(self, hardware: Hardware) -> EngineSpec:
        optimistic = self.admission == "optimistic"
        preemption = LeastUrgent() if self.order == "priority" else Newest()
        blocks = self.num_blocks or hardware.kv_tokens // self.block_size
        tree = self.prefix_cache and self.prefix_cache_kind == "radix-tree"
        return EngineSpec(
            name=self.preset,
            passes=(
                Advance(),
                Admit(SLOT_IS_FREE, BUDGET_IS_OPEN, MATCH_PREFIX, GRANT_CHUNK, BLOCKS_ARE_THERE),
                Run(),
            ),
            order=Priority() if self.order == "priority" else Fcfs(),
            admission=Optimistic(full_sequence=self.full_prompt_must_fit) if optimistic else Conservative(),
            budget=DecodeFirst(max_tokens=self.token_budget, chunk_cap=self.chunk_cap),
            preemption=preemption if optimistic else NoPreemption(),
            store=(
                tree_store(blocks, self.block_size)
                if tree
                else block_store(blocks, self.block_size, prefix_caching=self.prefix_cache)
            ),
            eviction=LruLeaf() if tree else None,
            max_running=self.slots,
            max_model_len=self.max_model_len or hardware.max_model_len,
            longer_than_model=self.longer_than_model,
        )
