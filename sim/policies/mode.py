"""What becomes of a victim, as a parameter of preemption policies that only choose who it is."""

from __future__ import annotations

from typing import Literal

from sim.core.plan import PreemptionMode
from sim.core.request import Request
from sim.policies.protocols import EngineView, PreemptionPolicy

Mode = Literal["recompute", "swap", "fail"]


class FixedMode(PreemptionPolicy):
    """A victim's KV is dropped, or moved to the host, or he ends: the same for all."""

    def __init__(self, mode: Mode = "recompute") -> None:
        self.becomes = PreemptionMode(mode)
        self.may_swap = self.becomes is PreemptionMode.SWAP

    def mode(self, engine: EngineView, victim: Request) -> PreemptionMode:
        return self.becomes
