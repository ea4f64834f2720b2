"""The result of one replay: the books, and everything that is needed to say what they are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from costmodel.model import CostModel
from costmodel.work import TokenWork
from sim.driver import Outcome
from sim.results.columns import EngineLog, RequestColumns
from sim.results.notebook import InNotebooks
from workloads.trace import Trace


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a report says of an engine, from its spec."""

    name: str
    total_blocks: int
    block_tokens: int
    max_running: int
    max_model_len: int
    step_budget: float | None
    """Tokens or token-work per step; None = unlimited."""
    prefix_caching: bool
    depth: int
    peak_used_blocks: int
    evicted_blocks: int
    host_block_bytes: int = 0
    """Of a block as it is swapped; 0 without a pool on the host."""
    kv_token_bytes: int = 0
    """Of a token's KV on each GPU; 0 where the cost model names no model."""
    step_target_s: float | None = None
    """What the budget lets a step take; None = it has no such target."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Targets per request, in seconds; None = no such target. Equality passes (vLLM)."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


@dataclass(frozen=True, repr=False)
class RunResult(InNotebooks):
    """What `sim.replay.replay` returns; metrics, tables and reports are functions of it."""

    scenario: dict[str, Any]
    """The whole description, as it can be run again; no paths of the machine, traces by name and hash."""
    trace: Trace
    """With `max_tokens` filled in."""
    requests: RequestColumns
    logs: list[EngineLog]
    """One per engine."""
    engines: list[EngineFacts]
    costs: list[CostModel]
    profile_name: str
    """Of the cost model: `h100-llama-3.1-8b-bf16`, or `linear`, ..."""
    slo: Slo
    outcome: Outcome
    initial_rows: int = 0
    """The first rows were running when the run began: their latencies are not of this run."""
    notes: tuple[str, ...] = ()
    """Assumptions and warnings to be printed with the figures, in words."""
    token_work: tuple[TokenWork, ...] = ()
    """Per engine, what a token of each kind weighs; empty = every token counts the same."""
