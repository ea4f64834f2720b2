"""Static batching, where the line of evolution starts: a batch is admitted only when the one before is over."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from sim.core.admit import BLOCKS_ARE_THERE, GRANT_CHUNK, SLOT_IS_FREE, Admit, nothing_preempted, nothing_runs
from sim.core.passes import Advance, Run
from sim.core.spec import EngineSpec
from sim.engines.config import ENGINES, EngineConfig, Hardware, block_store
from sim.policies.admission import Conservative
from sim.policies.budget import DecodeFirst
from sim.policies.order import Fcfs
from sim.policies.preemption import NoPreemption


@ENGINES.register("static-batch")
class StaticBatch(EngineConfig):
    """Up to `slots` requests start together, memory for their longest possible answers reserved.

    Each leaves as it finishes; nobody takes its place until the last is done.
    """

    preset: ClassVar[str] = "static-batch"

    slots: int = Field(default=32, ge=1)
    block_size: int = Field(default=16, ge=1)
    num_blocks: int | None = Field(default=None, ge=1)
    max_model_len: int | None = Field(default=None, ge=1)

    def spec(self, hardware: Hardware) -> EngineSpec:
        return EngineSpec(
            name=self.preset,
            passes=(
                Advance(),
                Admit(SLOT_IS_FREE, GRANT_CHUNK, BLOCKS_ARE_THERE, guards=(nothing_preempted, nothing_runs)),
                Run(),
            ),
            order=Fcfs(),
            admission=Conservative(),
            budget=DecodeFirst(),
            preemption=NoPreemption(),
            store=block_store(
                self.num_blocks or hardware.kv_tokens // self.block_size,
                self.block_size,
                prefix_caching=False,
            ),
            max_running=self.slots,
            max_model_len=self.max_model_len or hardware.max_model_len,
        )
