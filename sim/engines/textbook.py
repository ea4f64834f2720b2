"""The teaching preset: a budget in token-work, a chunk cap, and a pool small enough to follow by hand."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from sim.core.admit import BLOCKS_ARE_THERE, BUDGET_IS_OPEN, GRANT_CHUNK, SLOT_IS_FREE, Admit, Misfit
from sim.core.passes import Advance, AfterSelfPreemption, Run
from sim.core.spec import EngineSpec, Quirk
from sim.engines.config import ENGINES, EngineConfig, Hardware, block_store
from sim.policies.admission import Conservative, Optimistic
from sim.policies.budget import UNLIMITED, TokenWork
from sim.policies.order import Fcfs
from sim.policies.preemption import NoPreemption, SelfPreemption


@ENGINES.register("textbook")
class Textbook(EngineConfig):
    """Who lacks a block gives way himself; a misfit is skipped; conservative admission reserves prompt + max_new.

    Completing a prompt emits nothing; each decode step then writes one KV entry and emits one token.
    """

    preset: ClassVar[str] = "textbook"

    max_work: float = Field(default=float(UNLIMITED), gt=0)
    """Token-work per step, at equal weights."""
    chunk_cap: int = Field(default=0, ge=0)
    """The most prompt tokens of one request in a step; 0 = no cap."""
    block_size: int = Field(default=4, ge=1)
    num_blocks: int = Field(default=64, ge=1)
    admission: Literal["optimistic", "conservative"] = "optimistic"
    slots: int = Field(default=UNLIMITED, ge=1)

    def spec(self, hardware: Hardware) -> EngineSpec:
        optimistic = self.admission == "optimistic"
        return EngineSpec(
            name=self.preset,
            passes=(
                Advance(after_self_preemption=AfterSelfPreemption.NEXT),
                Admit(
                    SLOT_IS_FREE,
                    BUDGET_IS_OPEN,
                    GRANT_CHUNK,
                    BLOCKS_ARE_THERE,
                    misfit=Misfit.IS_SKIPPED,
                    whole_prompt=True,
                ),
                Run(),
            ),
            order=Fcfs(),
            admission=Optimistic() if optimistic else Conservative(),
            budget=TokenWork(max_work=self.max_work, chunk_cap=self.chunk_cap),
            preemption=SelfPreemption() if optimistic else NoPreemption(),
            store=block_store(self.num_blocks, self.block_size, prefix_caching=False),
            max_running=self.slots,
            max_model_len=hardware.max_model_len,
            quirks=frozenset({Quirk.PREFILL_EMITS_NOTHING}),
        )
