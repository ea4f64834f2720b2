"""Engines of our own, and budgets that are not of any one engine."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from sim.core.spec import EngineSpec
from sim.engines import UNKNOWN_HARDWARE, Reference, StaticBatch, Textbook
from sim.policies.budget import PerKind, PrefillFirst, TokenWork
from sim.policies.sharing import EqualShare
from sim.policies.step_time import StepTime
from tests.laws.costs import COSTS


class ContextWork:
    """Token-work that grows with the context, so that a budget in work runs out in the middle of a stretch."""

    def decode_work(self, requests: int, context_tokens: int) -> float:
        return requests + context_tokens / 16

    def prefill_work(self, tokens: int, context: int) -> float:
        return tokens * (0.25 + context / 64)


def reference(rng: Random, block: int, blocks: int, **flags: Any) -> EngineSpec:
    config = Reference(
        **{
            "token_budget": rng.choice((4, 8, 32, 512)),
            "chunk_cap": rng.choice((0, 0, 4)),
            "slots": rng.choice((2, 4, 64)),
            "block_size": block,
            "num_blocks": blocks,
            "max_model_len": 100_000,
            "full_prompt_must_fit": rng.random() < 0.7,
            "order": rng.choice(("fcfs", "priority")),
            **flags,
        }
    )
    return config.spec(UNKNOWN_HARDWARE)


def prefill_first(rng: Random, block: int, blocks: int) -> EngineSpec:
    budget = PrefillFirst(max_tokens=rng.choice((4, 8, 32)), chunk_cap=rng.choice((0, 4)))
    return replace(reference(rng, block, blocks), budget=budget)


def per_kind(rng: Random, block: int, blocks: int) -> EngineSpec:
    budget = PerKind(
        max_tokens=rng.choice((4, 8, 32)),
        max_decodes=rng.choice((2, 3, 64)),
        max_prefill_tokens=rng.choice((2, 8, 64)),
        max_chunk_tokens=rng.choice((2, 64)),
        prefill_min_tokens=rng.choice((0, 1)),
    )
    return replace(reference(rng, block, blocks), budget=budget)


def token_work(rng: Random, block: int, blocks: int) -> EngineSpec:
    budget = TokenWork(max_work=rng.choice((6.0, 12.0, 40.0)), chunk_cap=rng.choice((0, 4)), weights=ContextWork())
    return replace(reference(rng, block, blocks), budget=budget)


def step_time(rng: Random, block: int, blocks: int) -> EngineSpec:
    budget = StepTime(
        rng.choice((700, 1500, 4000)) / 1e9,
        COSTS["uneven"],
        prefill_min_tokens=rng.choice((1, 1, 8)),
        max_tokens=rng.choice((8, 64, 512)),
    )
    return replace(reference(rng, block, blocks), budget=budget)


def equal_share(rng: Random, block: int, blocks: int) -> EngineSpec:
    unit, sharers = rng.choice((1, 3, 16)), rng.choice((1, 2, 64))
    budget = EqualShare(max_tokens=rng.choice((4, 8, 32)), unit_tokens=unit, max_sharers=sharers)
    return replace(reference(rng, block, blocks), budget=budget)


def textbook(rng: Random, block: int, blocks: int) -> EngineSpec:
    config = Textbook(
        max_work=rng.choice((3.0, 6.0, 64.0)),
        chunk_cap=rng.choice((0, 2, 4)),
        block_size=block,
        num_blocks=blocks,
        admission=rng.choice(("optimistic", "conservative")),
        slots=rng.choice((2, 64)),
    )
    return config.spec(UNKNOWN_HARDWARE)


def static_batch(rng: Random, block: int, blocks: int) -> EngineSpec:
    config = StaticBatch(slots=rng.choice((1, 3, 8)), block_size=block, num_blocks=blocks, max_model_len=100_000)
    return config.spec(UNKNOWN_HARDWARE)
