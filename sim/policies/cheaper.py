"""Preemption that swaps a victim or recomputes him, whichever costs less."""

from __future__ import annotations

from typing import Protocol

from costmodel.shape import StepShape
from sim.core.plan import PreemptionMode
from sim.core.request import Request
from sim.policies.preemption import Newest
from sim.policies.protocols import EngineView
from sim.policies.registry import PREEMPTION


class StepCost(Protocol):
    """What is asked of a cost model."""

    def seconds(self, shape: StepShape, /) -> float: ...


@PREEMPTION.register("cheaper")
class Cheaper(Newest):
    """As `newest`; the victim is swapped if moving his blocks out and back takes less than computing them again.

    Computing: one forward over all tokens that he has, nothing found cached, by the run's own cost model (`cost`, which
    a replay fills in; without one nobody is swapped). Who finds no room on the host is recomputed.
    """

    def __init__(self, cost: StepCost | None = None) -> None:
        super().__init__()
        self.may_swap = True
        self.cost = cost

    def mode(self, engine: EngineView, victim: Request) -> PreemptionMode:
        held, host = engine.held_blocks(victim), engine.host
        if self.cost is None or held > host.free_blocks:
            return PreemptionMode.RECOMPUTE
        swap_s = 2 * held * host.ns_per_block / 1e9
        again_s = self.cost.seconds(StepShape(((victim.computed_tokens, 0),), 0, 0))
        return PreemptionMode.SWAP if swap_s < again_s else PreemptionMode.RECOMPUTE
