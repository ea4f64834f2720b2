"""Every rule of vLLM V0 that a recording pins: break it, and a recorded scenario turns red.

What no recording pins has made cases in tests/sim/engines/test_vllm_v0.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sim.conformance import RECORDERS, Scenario, check, load
from sim.conformance.vllm_v0 import VllmV0Recorder
from sim.core.admit import BLOCKS_ARE_THERE, GRANT_CHUNK, SLOT_IS_FREE, Admit, nothing_preempted, nothing_swapped
from sim.core.drafting import Drafting
from sim.core.passes import Advance, Pass, Run
from sim.core.plan import StepDraft
from sim.core.queue import FifoQueue
from sim.core.request import Request
from sim.core.spec import EngineSpec
from sim.core.swap import SwapIn
from sim.core.whole_prompt import MATCH_WHOLE_PROMPT
from sim.engines import Hardware
from sim.engines.vllm_v0 import VllmV0
from sim.policies.budget import DecodeFirst, ListOrder, PrefillFirst
from sim.policies.preemption import Newest

Patch = pytest.MonkeyPatch
Break = Callable[[Patch], None]

RECORDING = load(Path(__file__).parent / "vllm_v0.json")
assert RECORDING is not None
SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in RECORDING.scenarios}


# -- ways to break a rule


def specs(change: Callable[[EngineSpec], EngineSpec]) -> Break:
    """Build the engine otherwise."""

    def apply(patch: Patch) -> None:
        build = VllmV0.spec
        patch.setattr(VllmV0, "spec", lambda self, hardware: change(build(self, hardware)))

    return apply


def flags(**changes: Any) -> Break:
    """Configure the engine otherwise than the recording says."""

    def apply(patch: Patch) -> None:
        build = VllmV0.spec

        def changed(self: VllmV0, hardware: Hardware) -> EngineSpec:
            return build(VllmV0(**{**self.model_dump(), **changes}), hardware)

        patch.setattr(VllmV0, "spec", changed)

    return apply


def each_pass(change: Callable[[Pass], Pass]) -> Break:
    return specs(lambda spec: replace(spec, passes=tuple(map(change, spec.passes))))


def admission(**changes: Any) -> Break:
    """Admit with other parameters, its tests being the same."""

    def change(each: Pass) -> Pass:
        if not isinstance(each, Admit):
            return each
        return Admit(*each.tests, **{"guards": each.guards, "whole_prompt": each.whole_prompt, **changes})

    return each_pass(change)


def budget(kind: type[ListOrder], **more: Any) -> Break:
    def change(spec: EngineSpec) -> EngineSpec:
        assert isinstance(spec.budget, ListOrder)
        return replace(spec, budget=kind(spec.budget.max_tokens, **{"chunked": spec.budget.chunked, **more}))

    return specs(change)


class Oldest(Newest):
    """Another victim."""

    def victim(self, engine: Any, request: Request, draft: StepDraft) -> Request:
        return next(iter(engine.running))


def _last_out_first_in(patch: Patch) -> None:
    patch.setattr(SwapIn, "apply", lambda self, core, draft: _bring_back_newest(self, core, draft))


def _bring_back_newest(swap_in: SwapIn, core: Drafting, draft: StepDraft) -> None:
    while core.swapped and not any(guard(core, draft) for guard in swap_in.guards):
        if not swap_in._bring_back(core, draft, list(core.swapped)[-1]):
            return


def _push_to_the_front(patch: Patch) -> None:
    patch.setattr(FifoQueue, "push", FifoQueue.push_front)


def _comes_back_first(patch: Patch) -> None:
    swap_in = Drafting.swap_in

    def to_front(self: Drafting, draft: StepDraft, request: Request) -> None:
        swap_in(self, draft, request)
        self.rearrange([other for other in self.running if other is not request])

    patch.setattr(Drafting, "swap_in", to_front)


def _one_forward_for_both(spec: EngineSpec) -> EngineSpec:
    tests = (MATCH_WHOLE_PROMPT, SLOT_IS_FREE, GRANT_CHUNK, BLOCKS_ARE_THERE)
    admit = Admit(*tests, guards=(nothing_swapped,), whole_prompt=True)
    return replace(spec, passes=(Advance(spare_blocks=1), SwapIn(), admit, Run()))


@dataclass(frozen=True)
class Rule:
    text: str
    broken: Break
    noticed_by: tuple[str, ...]


RULES = [
    Rule(
        "prefills run by themselves, decodes when there are none", specs(_one_forward_for_both), ("v1_prefill_first",)
    ),
    Rule("no more than max_num_seqs run", flags(max_num_seqs=5), ("v1_prefill_first",)),
    Rule("the watermark stays free", flags(watermark=0.0), ("v2_watermark_hol",)),
    Rule(
        "a decode needs a free block even where its last one has room",
        each_pass(lambda each: Advance() if isinstance(each, Advance) else each),
        ("v3_recompute_preempt", "v4_swap_preempt"),
    ),
    Rule("the newest gives way", specs(lambda spec: replace(spec, preemption=Oldest())), ("v3_recompute_preempt",)),
    Rule(
        "who is recomputed waits in front",
        specs(lambda spec: replace(spec, requeue="back")),
        ("v3_recompute_preempt",),
    ),
    Rule("preemption_mode swap", flags(preemption_mode="recompute"), ("v4_swap_preempt",)),
    Rule("swapped requests stand in order of eviction", _push_to_the_front, ("v4_swap_preempt",)),
    Rule("who was swapped out first comes back first", _last_out_first_in, ("v4_swap_preempt",)),
    Rule(
        "nobody comes back in a step that has preempted",
        each_pass(lambda each: SwapIn(guards=()) if isinstance(each, SwapIn) else each),
        ("v4_swap_preempt",),
    ),
    Rule("who comes back stands behind the others", _comes_back_first, ("v4_swap_preempt",)),
    Rule("the blocks of the whole prompt are taken at its first chunk", admission(whole_prompt=False), ("v5_chunked",)),
    Rule("decodes before new chunks", budget(PrefillFirst), ("v5_chunked",)),
    Rule("chunks take what decodes leave", flags(max_num_batched_tokens=2048), ("v5_chunked",)),
    Rule(
        "a prompt beyond the limit is refused when it is looked at",
        each_pass(lambda each: _without_limit(each) if isinstance(each, Admit) else each),
        ("v7_too_long_ignored",),
    ),
]


def _without_limit(admit: Admit) -> Admit:
    return Admit(*admit.tests[1:], guards=admit.guards, whole_prompt=True)


NOT_PINNED = {
    "without chunks a prompt waits until it fits the step whole": budget(ListOrder, chunked=True),
    "nobody new while somebody is swapped": admission(guards=(nothing_preempted,)),
    "unfinished prompts in list order, not behind the decodes": budget(DecodeFirst),
    "the prefix cache": flags(enable_prefix_caching=False),
}
"""Rules that all recordings leave open; they have made cases."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
def test_a_broken_rule_is_noticed(rule: Rule, monkeypatch: Patch) -> None:
    """Each named scenario turns red when the rule is broken."""
    rule.broken(monkeypatch)
    assert [name for name in rule.noticed_by if not _noticed(name)] == []


@pytest.mark.parametrize("text", NOT_PINNED)
def test_what_no_recording_pins(text: str, monkeypatch: Patch) -> None:
    """If a recording begins to notice one of these, it can be moved up."""
    NOT_PINNED[text](monkeypatch)
    assert not any(map(_noticed, SCENARIOS))


def _noticed(name: str) -> bool:
    """A broken core may also fall over its own assertions."""
    try:
        return check(SCENARIOS[name]).difference is not None
    except (AssertionError, KeyError, IndexError, ValueError):
        return True


def test_totals() -> None:
    """7 scenarios of 141 steps."""
    assert isinstance(RECORDERS.make("vllm-v0"), VllmV0Recorder)
    results = [check(scenario) for scenario in SCENARIOS.values()]
    assert [result.difference for result in results] == [None] * 7
    assert sum(result.steps for result in results) == 141
