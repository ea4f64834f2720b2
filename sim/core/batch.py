"""The batch of a plan, request by request: for decision logs and real executors. Replays never need it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sim.core.engine import EngineCore
from sim.core.plan import BatchPlan, Item
from sim.core.request import Request


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A request's share of the plan's first step."""

    request: Request
    kind: Literal["running", "new", "resumed"]
    tokens: int
    context: int
    """Tokens computed before the step."""
    hit_tokens: int
    new_blocks: int
    held_blocks: int
    """After scheduling."""
    emits: bool
    """An output token comes out of it."""


def batch(core: EngineCore, plan: BatchPlan) -> list[Scheduled]:
    """In list order. Valid right after `plan_step` returned the plan, before anything else is asked of the core."""
    items = {item.request: item for item in plan.items}
    rows = []
    for request in core.running:
        item = items.get(request)
        if item is not None:
            rows.append(_chunk(core, item))
        elif plan.decode_requests and request.decoding and (plan.decodes is None or request in plan.decodes):
            rows.append(_decode(core, request))
    return rows


def _chunk(core: EngineCore, item: Item) -> Scheduled:
    kind: Literal["running", "new", "resumed"] = "running"
    if item.admitted:
        kind = "resumed" if item.request.preemptions else "new"
    return Scheduled(
        item.request,
        kind,
        item.tokens,
        item.context,
        item.hit_tokens,
        item.new_blocks,
        held_blocks=core.held_blocks(item.request),
        emits=item.emits,
    )


def _decode(core: EngineCore, request: Request) -> Scheduled:
    context = request.computed_tokens - 1
    new_blocks = 1 if context % core.block_tokens == 0 else 0
    return Scheduled(request, "running", 1, context, 0, new_blocks, core.blocks(context + 1), emits=True)
