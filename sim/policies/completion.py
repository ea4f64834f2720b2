"""Admission by what everybody may still need to be over (TensorRT-LLM)."""

from __future__ import annotations

from sim.core.request import Request
from sim.policies.admission import Conservative
from sim.policies.protocols import EngineView
from sim.policies.registry import ADMISSION


@ADMISSION.register("reserve-to-completion")
class ReserveToCompletion(Conservative):
    """What everybody who runs may still need stays free (TensorRT-LLM `getRemainingBlocksToCompletion`).

    As `conservative`, which adds up the same blocks from the other end, but the last token has its place reserved too,
    though it never gets KV.
    """

    def reservation(self, engine: EngineView, request: Request) -> int:
        return engine.blocks(request.prompt_tokens + request.max_tokens)
