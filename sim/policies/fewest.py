"""Preemption of whoever has the least to lose (SGLang's retraction)."""

from __future__ import annotations

from sim.core.plan import StepDraft
from sim.core.request import Request
from sim.policies.protocols import EngineView, PreemptionPolicy
from sim.policies.registry import PREEMPTION


@PREEMPTION.register("fewest-outputs")
class FewestOutputs(PreemptionPolicy):
    """The decode with the fewest output tokens gives way; on ties the longest prompt, then the last in the list.

    Prefills give way only where nobody decodes, the newest first. Survivors go on with most outputs first. Source:
    SGLang 0.5.23 `schedule_batch.py` (`_get_decode_retraction_order`).
    """

    def victim(self, engine: EngineView, request: Request, draft: StepDraft) -> Request | None:
        decodes = [other for other in reversed(engine.running) if other.decoding]
        return min(decodes, key=_worth, default=next(reversed(engine.running)))

    def stay_first(self, requests: list[Request]) -> list[Request]:
        return sorted(requests, key=_worth, reverse=True)


def _worth(request: Request) -> tuple[int, int]:
    return request.output_tokens, -request.prompt_tokens
