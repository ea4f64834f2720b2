"""Steps and plans of one engine: how long they took, what was in them, how full the pool was."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from costmodel.work import TokenWork
from sim.core.plan import Blocker
from sim.results.arrays import BoolArray, FloatArray, IntArray, same, view
from sim.results.blocked import WAITED_FOR, blocker_steps
from sim.results.columns import EngineLog
from sim.results.run import EngineFacts


@dataclass(frozen=True)
class Plans:
    """One row per plan (shape: (num_plans,)) or per step (shape: (num_steps,)), as each says."""

    log: EngineLog
    facts: EngineFacts
    work: TokenWork
    until_ns: int
    """Time is counted up to here: a step that runs after everybody has left (asynchronous scheduling) is in vain."""

    def column(self, name: str) -> IntArray:
        """A column of `StepColumns`, per plan."""
        column: IntArray = getattr(self.log.steps, name)
        return column

    # -- per step

    @property
    def num_steps(self) -> int:
        return len(self.log.steps.ends_ns)

    @property
    def ends_ns(self) -> IntArray:
        """Per step."""
        return view(self.log.steps.ends_ns)

    @property
    def starts_ns(self) -> IntArray:
        """Per step: where the one before ended, or later if the engine was idle in between."""
        starts = np.empty_like(self.ends_ns)
        starts[1:] = self.ends_ns[:-1]
        ran = self.steps > 0
        starts[(np.cumsum(self.steps) - self.steps)[ran]] = self.start_ns[ran]
        return starts

    @property
    def step_ns(self) -> IntArray:
        """Per step: how long it took."""
        return self.ends_ns - self.starts_ns

    # -- per plan

    @property
    def steps(self) -> IntArray:
        """Per plan; 0 for one that had not run when the run stopped."""
        return view(self.log.steps.steps)

    @property
    def start_ns(self) -> IntArray:
        return self.column("start_ns")

    @property
    def end_ns(self) -> IntArray:
        """Per plan: the end of its last step."""
        last = np.cumsum(self.steps) - 1
        ends = self.start_ns.copy()
        ran = self.steps > 0
        ends[ran] = self.ends_ns[last[ran]]
        return ends

    @cached_property
    def lasting_ns(self) -> IntArray:
        return np.minimum(self.end_ns, self.until_ns) - np.minimum(self.start_ns, self.until_ns)

    @property
    def has_prefill(self) -> BoolArray:
        return self.column("prefill_requests") > 0

    @property
    def requests(self) -> IntArray:
        """Per plan: requests in each of its steps."""
        return self.column("decode_requests") + self.column("prefill_requests")

    def _mean_context_tokens(self) -> FloatArray:
        """Decode context of an average step of the plan: it grows by the batch size in every step."""
        growth = self.column("decode_requests") * np.maximum(0, self.steps - 1) / 2
        return self.column("decode_context_tokens") + growth

    @cached_property
    def decode_work(self) -> FloatArray:
        """Token-work of the decodes in an average step of each plan."""
        nothing = np.zeros(len(self.steps), np.int64)
        return self._work(nothing, nothing, self.column("decode_requests"), self._mean_context_tokens())

    @cached_property
    def prefill_work(self) -> FloatArray:
        """Token-work of the prefill chunks in a step of each plan."""
        nothing = np.zeros(len(self.steps), np.int64)
        return self._work(self.column("prefill_tokens"), self.column("prefill_pairs2") / 2, nothing, nothing)

    def _work(
        self, tokens: IntArray, pairs: IntArray | FloatArray, requests: IntArray, context: IntArray | FloatArray
    ) -> FloatArray:
        return self.work.work_of_columns(
            prefill_tokens=tokens, prefill_pairs=pairs, decode_requests=requests, decode_context_tokens=context
        )

    @property
    def used_blocks(self) -> FloatArray:
        """Blocks in use in an average step of each plan: every decode takes one per `block_tokens` steps."""
        growth = self.column("decode_requests") * np.maximum(0, self.steps - 1) / (2 * self.facts.block_tokens)
        return np.minimum(self.column("used_blocks") + growth, self.facts.total_blocks)

    @property
    def cached_blocks(self) -> FloatArray:
        """Of the free blocks, those with cached contents, in an average step of each plan: growth evicts them."""
        return np.minimum(self.column("cached_blocks"), self.facts.total_blocks - self.used_blocks)

    @cached_property
    def starved(self) -> BoolArray:
        """Plans of nothing but decodes while the head of the queue waits for work: decodes took the whole budget."""
        since, place = blocker_steps(self.log)
        at = np.searchsorted(since, self.column("scheduled_ns"), side="right") - 1
        waits_for_work = same(place[at], WAITED_FOR.index(Blocker.WORK))
        return waits_for_work & ~same(self.column("waiting"), 0) & ~self.has_prefill & ~same(self.requests, 0)

    # -- means

    def sum_over_time(self, values: IntArray | FloatArray) -> float:
        """Integral of a quantity of each plan over the time it ran; idle time adds nothing. Unit: value x s"""
        return float((values * (self.lasting_ns / 1e9)).sum())

    def sum_over_steps(self, values: IntArray | FloatArray) -> float:
        return float((values * self.steps.astype(np.float64)).sum())
