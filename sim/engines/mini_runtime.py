"""mini-runtime: prefill and decode as two forwards of one iteration, nothing kept for outputs, and its defects.

Rules and defaults: KIOSHIROI/mini-runtime@74c140b `mini_runtime/{engine.py,cache,configs/runtime_config.py}`. Decisions
agree with the recordings in tests/golden step for step. Not modelled: the 1 ms that an iteration sleeps when nobody
decodes.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from pydantic import Field

from sim.core.admit import MATCH_PREFIX, SLOT_IS_FREE, Admit, Misfit
from sim.core.passes import Advance, AfterSelfPreemption, Run
from sim.core.reclaim import RECLAIM_UNTIL_IT_FITS
from sim.core.spec import EngineSpec, Quirk
from sim.engines.config import ENGINES, EngineConfig, Hardware
from sim.kv.leaky import LeakyTreeStore
from sim.kv.leaky_tree import TreeDefect
from sim.policies.admission import Optimistic
from sim.policies.budget import PerKind
from sim.policies.order import Fcfs
from sim.policies.preemption import FailAsker


@ENGINES.register("mini-runtime")
class MiniRuntime(EngineConfig):
    """A request takes the blocks of its whole prompt when it is let in, or is lost; who lacks a block later fails.

    Who completes its prompt is decoded in the same iteration, unasked: no answer has fewer than two tokens. A cancel or
    timeout is noted and the answer computed to its end. A prompt longer than the pool is rejected when it comes (ours:
    mini-runtime loses it as it would any other, its whole cache with it).
    """

    preset: ClassVar[str] = "mini-runtime"

    max_batch_size: int = Field(default=4, ge=1)
    """Requests in prefill and decode together."""
    block_size: int = Field(default=16, ge=1)
    num_blocks: int = Field(default=16384, ge=1)
    max_tokens_per_prefill_chunk: int = Field(default=1024, ge=1)
    """Of one prompt in an iteration."""
    max_tokens_per_prefill_step: int = Field(default=8192, ge=1)
    """Of all prompts in an iteration."""
    request_timeout: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """Seconds from submission after which a client gives up who has no deadline of his own."""
    tree_inserts_stale: bool = True
    """Defects of the prefix tree, which can be mended one by one (ours, not flags of mini-runtime; see TreeDefect)."""
    tree_hides_older: bool = True
    tree_empty_edges: bool = True
    tree_shares_partial: bool = True
    tree_evicts_used: bool = True
    max_model_len: int | None = Field(default=None, ge=1)
    """None = the model's longest sequence (ours: mini-runtime does not look)."""

    def spec(self, hardware: Hardware) -> EngineSpec:
        return EngineSpec(
            name=self.preset,
            passes=(
                Admit(
                    SLOT_IS_FREE,
                    MATCH_PREFIX,
                    RECLAIM_UNTIL_IT_FITS,
                    guards=(),
                    misfit=Misfit.IS_LOST,
                    whole_prompt=True,
                ),
                Advance(decodes=False),
                Run(restart=False),
                Advance(prefills=False, after_self_preemption=AfterSelfPreemption.NEXT),
                Run(),
            ),
            order=Fcfs(),
            admission=Optimistic(),
            budget=PerKind(
                max_prefill_tokens=self.max_tokens_per_prefill_step,
                max_chunk_tokens=self.max_tokens_per_prefill_chunk,
            ),
            preemption=FailAsker(),
            store=partial(LeakyTreeStore, self.num_blocks, self.block_size, defects=self.tree_defects),
            max_running=self.max_batch_size,
            max_model_len=self.max_model_len or hardware.max_model_len,
            request_timeout_s=self.request_timeout,
            list_order="decoding",
            quirks=frozenset(
                {
                    Quirk.FIRST_TOKEN_NOT_CHECKED,
                    Quirk.LEAVERS_RUN_ON,
                    Quirk.MISFITS_ARE_LOST,
                    Quirk.CACHE_LEAKS,
                }
            ),
        )

    @property
    def tree_defects(self) -> frozenset[TreeDefect]:
        """Those that have not been mended."""
        return frozenset(defect for defect in TreeDefect if getattr(self, "tree_" + defect.value.replace("-", "_")))
