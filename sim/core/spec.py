"""What makes an engine: passes, policies, limits and named quirks. Presets (`sim.engines`) are values of this type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sim.core.passes import Pass
    from sim.kv.store import BlockStore
    from sim.policies.protocols import AdmissionPolicy, BudgetPolicy, OrderPolicy, PreemptionPolicy


class Quirk(Enum):
    """A known peculiarity of an engine; a law that it breaks reads it here."""

    PREFILL_EMITS_NOTHING = "prefill_emits_nothing"
    """The step that completes a prompt emits no token, and the last token gets a KV entry too (teaching preset)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    name: str
    passes: tuple[Pass, ...]
    order: OrderPolicy
    admission: AdmissionPolicy
    budget: BudgetPolicy
    preemption: PreemptionPolicy
    store: Callable[[], BlockStore]
    """Makes a new, empty pool."""
    max_running: int
    """Sequence slots."""
    max_model_len: int
    longer_than_model: Literal["reject", "clip"] = "clip"
    """A request whose prompt + max_tokens exceed max_model_len: refused, or its answer cut (case C4)."""
    depth: Literal[1, 2] = 1
    """Plans outstanding at most: 2 is asynchronous scheduling, where a step is planned while the one before runs."""
    quirks: frozenset[Quirk] = frozenset()
