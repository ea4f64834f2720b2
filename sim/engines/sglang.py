"""SGLang (0.5.23): prefills before decodes, admission by a new-token ratio, a radix tree, retraction.

Rules and defaults: sglang 0.5.23 `srt/managers/{scheduler,schedule_policy,schedule_batch}.py`, `srt/mem_cache`.
Decisions agree with the recordings in tests/golden step for step. Not modelled: overlap scheduling (a step is planned
when the one before is over), priorities, ignore_eos, and that a waiting request's prefix is touched every 32nd scan.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from sim.core.admit import (
    BLOCKS_ARE_THERE,
    BUDGET_IS_OPEN,
    GRANT_CHUNK,
    MATCH_PREFIX,
    SLOT_IS_FREE,
    Admit,
    a_slot_is_free,
    not_latched,
)
from sim.core.front import FrontLimits
from sim.core.passes import Advance, MakeRoom, Pass, Run
from sim.core.spec import EngineSpec, Quirk
from sim.engines.config import ENGINES, EngineConfig, Hardware, block_store, tree_store
from sim.policies.arrange import DepthFirst, LongestOutputFirst, LongestPrefixFirst
from sim.policies.eviction import LruLeaf
from sim.policies.fewest import FewestOutputs
from sim.policies.order import Fcfs
from sim.policies.pages import PageChunks
from sim.policies.protocols import OrderPolicy
from sim.policies.ratio import SPARE_TOKENS, NewTokenRatio


def _off(value: object) -> object:
    """SGLang switches chunks off with -1."""
    return None if value in (-1, "-1", "none") else value


@ENGINES.register("sglang")
class Sglang(EngineConfig):
    """SGLang's own flag names; defaults of its server on a GPU of 60 to 160 GiB."""

    preset: ClassVar[str] = "sglang"

    schedule_policy: Literal["fcfs", "lpm", "dfs-weight", "lof"] = "fcfs"
    """lpm and dfs-weight look at the prefix cache, and are fcfs without one."""
    max_running_requests: int | None = Field(default=None, ge=1)
    """Sequence slots, never more than half as many as the pool has tokens. None = as many as fit it at 1/512 of the
    context each, but at least 2048 and at most 4096."""
    chunked_prefill_size: Annotated[int | None, BeforeValidator(_off)] = Field(default=8192, ge=1)
    """Prefill tokens per step, in whole pages; longer prompts are cut. None = off (SGLang: -1)."""
    max_prefill_tokens: int = Field(default=16384, ge=1)
    """When the prefills of a step come to so many nobody else joins; without chunks the first may be longer."""
    page_size: int = Field(default=1, ge=1)
    """Tokens per block."""
    schedule_conservativeness: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Scales the share of max_tokens that running requests are expected to write: 0.7 at first, at most 1."""
    enable_mixed_chunk: bool = False
    """Decodes join the steps in which prompts are computed."""
    disable_radix_cache: bool = False
    clip: int = Field(default=4096, ge=1)
    """Output tokens expected of a request at most (environment: SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION)."""
    max_total_tokens: int | None = Field(default=None, ge=1)
    """The pool, in tokens, in whole pages. None = what the profile's device has."""
    max_queued_requests: int | None = Field(default=None, ge=1)
    """Who comes when so many wait is rejected (SGLang: also who comes back from a retraction). None = no limit."""
    context_length: int | None = Field(default=None, ge=1)
    """None = the model's longest sequence."""
    longer_than_model: Literal["reject", "clip"] = "clip"
    """A request whose prompt + max_tokens exceed context or pool: refused, or its answer cut (ours; SGLang cuts at the
    pool, and at the context with --allow-auto-truncate)."""

    @model_validator(mode="after")
    def _chunks_are_pages(self) -> Self:
        chunk, page = self.chunked_prefill_size, self.page_size
        if chunk is not None and chunk % page:
            raise ValueError(f"chunked_prefill_size must be a multiple of page_size {page}, got {chunk}")
        return self

    def spec(self, hardware: Hardware) -> EngineSpec:
        page, context = self.page_size, self.context_length or hardware.max_model_len
        blocks = (self.max_total_tokens or hardware.kv_tokens) // page
        return EngineSpec(
            name=self.preset,
            passes=self._passes(),
            order=self._order(),
            admission=NewTokenRatio(
                conservativeness=self.schedule_conservativeness, clip_tokens=self.clip, mixed=self.enable_mixed_chunk
            ),
            budget=PageChunks(
                max_input_tokens=self.max_prefill_tokens,
                chunk_tokens=self.chunked_prefill_size or 0,
                mixed=self.enable_mixed_chunk,
            ),
            preemption=FewestOutputs(),
            store=block_store(blocks, page, prefix_caching=False)
            if self.disable_radix_cache
            else tree_store(blocks, page),
            eviction=None if self.disable_radix_cache else LruLeaf(),
            front=None if self.max_queued_requests is None else FrontLimits(max_waiting=self.max_queued_requests),
            max_running=self._slots(blocks * page, context),
            max_model_len=_longest(context, blocks, page),
            longer_than_model=self.longer_than_model,
            requeue="back",
            takes_blocks="after the scan",
            quirks=frozenset({Quirk.LATCH_IDLES}),
        )

    def _slots(self, pool_tokens: int, context: int) -> int:
        """Source: `resolve_max_num_reqs`."""
        fitting = max(2048, min(4096, int(pool_tokens / context * 512)))
        return max(1, min(self.max_running_requests or fitting, pool_tokens // 2))

    def _passes(self) -> tuple[Pass, ...]:
        join = (Advance(prefills=False, joins_prefills=True),) if self.enable_mixed_chunk else ()
        return (
            Advance(decodes=False),
            Admit(
                BUDGET_IS_OPEN,
                SLOT_IS_FREE,
                MATCH_PREFIX,
                BLOCKS_ARE_THERE,
                GRANT_CHUNK,
                guards=(a_slot_is_free, not_latched),
                latches=True,
            ),
            *join,
            Run(),
            MakeRoom(spare_tokens_each=SPARE_TOKENS),
            Advance(prefills=False),
            Run(),
        )

    def _order(self) -> OrderPolicy:
        if self.schedule_policy == "lof":
            return LongestOutputFirst()
        if self.disable_radix_cache or self.schedule_policy == "fcfs":
            return Fcfs()
        return LongestPrefixFirst() if self.schedule_policy == "lpm" else DepthFirst()


def _longest(context: int, blocks: int, page: int) -> int:
    """Prompt and max_tokens together: one less than the longest sequence, itself one less than context and pool.

    The pool also lacks a page, and a prompt's last page counts as full (`init_req_max_new_tokens`,
    `max_new_tokens_for_memory`); we take that page for empty, so that all prompts have one limit.
    """
    return max(1, min(context - 2, (blocks - 2) * page))
