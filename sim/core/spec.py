"""What makes an engine: passes, policies, limits and named quirks. Presets (`sim.engines`) are values of this type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal

from sim.core.front import FrontLimits
from sim.kv.host import NO_HOST, HostSpec

if TYPE_CHECKING:
    from sim.core.passes import Pass
    from sim.kv.store import BlockStore
    from sim.policies.eviction import EvictionPolicy
    from sim.policies.protocols import AdmissionPolicy, BudgetPolicy, OrderPolicy, PreemptionPolicy


class Quirk(Enum):
    """A known peculiarity of an engine; a law that it breaks reads it here."""

    PREFILL_EMITS_NOTHING = "prefill_emits_nothing"
    """The step that completes a prompt emits no token, and the last token gets a KV entry too (teaching preset)."""
    FIRST_TOKEN_NOT_CHECKED = "first_token_not_checked"
    """Nobody looks whether the first token was the last: a one-token answer has two (mini-runtime)."""
    LEAVERS_RUN_ON = "leavers_run_on"
    """A cancel or timeout is only noted; the engine goes on computing until the answer is over (mini-runtime)."""
    MISFITS_ARE_LOST = "misfits_are_lost"
    """A request whose blocks are not there when it is let in disappears without an answer (mini-runtime)."""
    LATCH_IDLES = "latch_idles"
    """After a refusal nobody is looked at until somebody leaves, even if he would fit (SGLang's batch_is_full)."""
    CACHE_LEAKS = "cache_leaks"
    """Blocks of the prefix tree are never given back, some not even reachable (mini-runtime)."""


ListOrder = Literal["admission", "arrival", "decoding"]
"""In which order requests run: of last admission, of submission, or (decodes) of when they began to decode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    name: str
    passes: tuple[Pass, ...]
    order: OrderPolicy
    admission: AdmissionPolicy
    budget: BudgetPolicy
    preemption: PreemptionPolicy
    store: Callable[..., BlockStore]
    """Makes a new, empty pool; takes an `eviction` if there is one."""
    eviction: EvictionPolicy | None = None
    """Which cached contents go first; None where the cache has its own order (or there is no cache)."""
    host: HostSpec = NO_HOST
    max_running: int
    """Sequence slots."""
    max_model_len: int
    longer_than_model: Literal["reject", "clip"] = "clip"
    """A request whose prompt + max_tokens exceed max_model_len: refused, or its answer cut (case C4)."""
    list_order: ListOrder = "admission"
    requeue: Literal["front", "back"] = "front"
    """Where a preempted request waits, if the order is one of arrival."""
    takes_blocks: Literal["at once", "after the scan"] = "at once"
    """When the blocks of prefill chunks are taken: as each is scheduled, or when all have been."""
    depth: Literal[1, 2] = 1
    """Plans outstanding at most: 2 is asynchronous scheduling, where a step is planned while the one before runs."""
    front: FrontLimits | None = None
    """What may be inside at all; None: everybody who comes."""
    request_timeout_s: float | None = None
    """The deadline, from submission, of requests that the workload gives none; None: they wait for ever."""
    quirks: frozenset[Quirk] = frozenset()

    def new_store(self) -> BlockStore:
        """An empty pool."""
        return self.store() if self.eviction is None else self.store(eviction=self.eviction)
