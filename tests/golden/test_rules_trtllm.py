"""TensorRT-LLM: break one rule, and a recorded scenario turns red. What no recording pins is in
tests/sim/engines/test_trtllm.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from sim.conformance import compare, load
from sim.conformance.trtllm import Loop, TrtLlmRecorder
from sim.core import pack, select
from sim.core.drafting import Drafting
from sim.core.engine import EngineCore
from sim.core.pack import Pack
from sim.core.passes import Run
from sim.core.plan import ADMIT, Decision, StepDraft
from sim.core.request import Request
from sim.core.select import Select
from sim.core.spec import EngineSpec
from sim.core.split import InTurn, Shares, SideBySide
from sim.engines.trtllm import TrtLlm
from sim.kv.store import NO_HIT
from sim.policies.admission import NO_RESERVATION, Optimistic
from sim.policies.budget import DecodeFirst, PrefillFirst
from sim.policies.completion import ReserveToCompletion
from sim.policies.order import Fcfs
from sim.policies.preemption import NoPreemption
from sim.policies.protocols import EngineView, PreemptionPolicy

Patch = pytest.MonkeyPatch
Break = Callable[[Patch], None]

RECORDING = load(Path(__file__).parent / "trtllm.json")
assert RECORDING is not None
SCENARIOS = {scenario.name: scenario for scenario in RECORDING.scenarios}


def noticed(name: str) -> bool:
    """A broken core may also go on for ever, or fall over its own assertions."""
    recorded = SCENARIOS[name]
    try:
        steps = list(islice(Loop(recorded.input).turns(), len(recorded.output["steps"]) + 5))
    except (AssertionError, KeyError, IndexError, ValueError):
        return True
    return compare(TrtLlmRecorder(), recorded.output, {"steps": steps}).difference is not None


# -- ways to break a rule


def spec_with(**changes: Any) -> Break:
    return specs(lambda spec: replace(spec, **changes))


def specs(change: Callable[[EngineSpec], EngineSpec]) -> Break:
    def apply(patch: Patch) -> None:
        build = TrtLlm._spec
        patch.setattr(TrtLlm, "_spec", lambda self, *args, **kwargs: change(build(self, *args, **kwargs)))

    return apply


def without_guards(spec: EngineSpec) -> EngineSpec:
    old = spec.passes[0]
    assert isinstance(old, Select)
    return replace(spec, passes=(Select(*old.tests), *spec.passes[1:]))


def split(new: Any) -> Break:
    return specs(lambda spec: replace(spec, passes=(spec.passes[0], Pack(split=new), Run())))


def set_to(owner: object, name: str, value: Any) -> Break:
    return lambda patch: patch.setattr(owner, name, value, raising=False)


class FirstStarted(PreemptionPolicy):
    def victim(self, engine: EngineView, request: Request, draft: StepDraft) -> Request | None:
        return next(iter(engine.running))


def _skip_misfits(self: Select, core: Drafting, draft: StepDraft, chosen: list[Request], end: int) -> None:
    """Look behind who does not fit."""
    taken = select._next_blocks(core)
    for request in core.waiting:
        if self._decide(core, draft, request, len(chosen), taken) is ADMIT:
            chosen.append(request)
            taken += select.lacking_blocks(core, request)


def _who_was_selected_does_not_count(self: Any, engine: Any, request: Request, hit: Any, blocks: int) -> Decision:
    promised = sum(each.reserved_blocks for each in engine.running) + self.reservation(engine, request)
    return NO_RESERVATION if promised > engine.store.total_blocks else ADMIT


def _let_everybody_in(patch: Patch) -> None:
    schedule = Pack._schedule

    def scheduled(self: Pack, core: Drafting, draft: StepDraft, shares: Shares) -> None:
        schedule(self, core, draft, shares)
        for request in draft.selected:
            if request not in core.running:
                core.let_in(request, NO_HIT)
                core.grow(draft, request, select.lacking_blocks(core, request), 0)

    patch.setattr(Pack, "_schedule", scheduled)


def _blocks_of_the_first_unit(core: Drafting, request: Request) -> int:
    return max(0, core.blocks(min(request.known_tokens, request.computed + 128)) - request.held_blocks)


def _forget_outputs(patch: Patch) -> None:
    preempt = EngineCore.preempt

    def preempted(self: EngineCore, draft: StepDraft, victim: Request, **kwargs: Any) -> None:
        preempt(self, draft, victim, **kwargs)
        victim.outputs = 0

    patch.setattr(EngineCore, "preempt", preempted)


@dataclass(frozen=True)
class Rule:
    text: str
    broken: Break
    noticed_by: tuple[str, ...]


RULES = [
    # Capacity scheduler
    Rule(
        "GUARANTEED_NO_EVICT reserves to the end of the longest answer",
        spec_with(admission=Optimistic()),
        ("t1_noevict",),
    ),
    Rule("the first that does not fit ends the scan", set_to(Select, "_scan", _skip_misfits), ("t1_noevict",)),
    Rule(
        "who was selected counts as reserved for those behind",
        set_to(ReserveToCompletion, "decide", _who_was_selected_does_not_count),
        ("t1_noevict",),
    ),
    Rule("STATIC_BATCH waits until nobody generates", specs(without_guards), ("t3_static",)),
    Rule(
        "MAX_UTILIZATION looks at the next step only",
        spec_with(admission=ReserveToCompletion(), preemption=NoPreemption()),
        ("t2_maxutil_pause",),
    ),
    Rule("it pauses the last started request", spec_with(preemption=FirstStarted()), ("t2_maxutil_pause",)),
    Rule("nobody just waits for a block", spec_with(preemption=NoPreemption()), ("t2_maxutil_pause",)),
    Rule("a paused request keeps its place", spec_with(order=Fcfs(), requeue="back"), ("t2_maxutil_pause",)),
    Rule(
        "its outputs are part of its prompt then",
        _forget_outputs,
        ("t2_maxutil_pause",),
    ),
    # Micro-batch scheduler
    Rule(
        "at most max_num_tokens in a step",
        spec_with(budget=DecodeFirst(max_tokens=10_000)),
        ("t4_fcfs_chunk", "t5_equal_progress"),
    ),
    Rule("FIRST_COME_FIRST_SERVED: each prompt takes what is left", split(SideBySide(32)), ("t4_fcfs_chunk",)),
    Rule("EQUAL_PROGRESS: a unit for each, round by round", split(InTurn(32)), ("t5_equal_progress",)),
    Rule("chunks are cut to whole units", split(InTurn(1)), ("t4_fcfs_chunk",)),
    Rule("rounds are of whole units", split(SideBySide(16)), ("t5_equal_progress",)),
    Rule(
        "generation takes its tokens first",
        spec_with(budget=PrefillFirst(max_tokens=256)),
        ("t4_fcfs_chunk",),
    ),
    Rule(
        "unfinished prompts stand first in the batch",
        set_to(pack, "sorted", lambda shares, key: shares),
        ("t4_fcfs_chunk", "t5_equal_progress"),
    ),
    Rule(
        "the first chunk takes the blocks of the whole prompt",
        set_to(pack, "lacking_blocks", _blocks_of_the_first_unit),
        ("t4_fcfs_chunk", "t5_equal_progress"),
    ),
    Rule("who gets no tokens takes no blocks", _let_everybody_in, ("t4_fcfs_chunk",)),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
def test_a_broken_rule_is_noticed(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each recording named turns red when the rule is broken."""
    rule.broken(monkeypatch)
    assert [name for name in rule.noticed_by if not noticed(name)] == []


def test_unbroken_they_are_green() -> None:
    """What turns red above is green before."""
    assert not any(noticed(name) for name in SCENARIOS)
