"""mini-runtime: break one rule, and a recorded scenario turns red. What no recording pins is in
tests/sim/engines/test_mini_runtime.py and tests/sim/kv/test_leaky.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from sim.conformance import compare, load
from sim.conformance.mini_runtime import Loop, MiniRuntimeRecorder
from sim.core import admit
from sim.core.admit import MATCH_PREFIX, NO_BLOCKS, SLOT_IS_FREE, Admit, Candidate, Misfit
from sim.core.drafting import Drafting
from sim.core.passes import Advance, AfterSelfPreemption, Run
from sim.core.plan import ADMIT, Decision, StepDraft
from sim.core.reclaim import RECLAIM_UNTIL_IT_FITS
from sim.core.request import Request
from sim.core.spec import EngineSpec, Quirk
from sim.engines.mini_runtime import MiniRuntime
from sim.kv.leaky import LeakyTreeStore
from sim.kv.leaky_tree import LeakyTree
from sim.policies.admission import Optimistic
from sim.policies.preemption import Newest, SelfPreemption

Patch = pytest.MonkeyPatch
Break = Callable[[Patch], None]

RECORDING = load(Path(__file__).parent / "mini_runtime.json")
assert RECORDING is not None
SCENARIOS = {scenario.name: scenario for scenario in RECORDING.scenarios}


def noticed(name: str) -> bool:
    """A broken core may also go on for ever, or fall over its own assertions."""
    recorded = SCENARIOS[name]
    loop = Loop(recorded.input)
    try:
        steps = list(islice(loop.turns(), len(recorded.output["steps"]) + 5))
        ours = {"steps": steps, **loop.books.summary(loop.core.peak_used_blocks)}
    except (AssertionError, KeyError, IndexError, ValueError):
        return True
    return compare(MiniRuntimeRecorder(), recorded.output, ours).difference is not None


# -- ways to break a rule


def spec_with(**changes: Any) -> Break:
    return specs(lambda spec: replace(spec, **changes))


def specs(change: Callable[[EngineSpec], EngineSpec]) -> Break:
    def apply(patch: Patch) -> None:
        build = MiniRuntime.spec
        patch.setattr(MiniRuntime, "spec", lambda self, hardware: change(build(self, hardware)))

    return apply


def flags(**changes: Any) -> Break:
    def apply(patch: Patch) -> None:
        build = MiniRuntime.spec
        patch.setattr(MiniRuntime, "spec", lambda self, hardware: build(self.model_copy(update=changes), hardware))

    return apply


def mended(defect: str) -> Break:
    """Without one defect of the tree."""

    def apply(patch: Patch) -> None:
        defects = MiniRuntime.tree_defects.fget
        without = lambda self: {each for each in defects(self) if each.value != defect}  # noqa: E731
        patch.setattr(MiniRuntime, "tree_defects", property(without))

    return apply


def without(quirk: Quirk) -> Break:
    return specs(lambda spec: replace(spec, quirks=spec.quirks - {quirk}))


def admission(*tests: admit.Test, misfit: Misfit = Misfit.IS_LOST) -> Break:
    def change(spec: EngineSpec) -> EngineSpec:
        return replace(spec, passes=(Admit(*tests, guards=(), misfit=misfit), *spec.passes[1:]))

    return specs(change)


def passes_behind_admission(*passes: Any) -> Break:
    return specs(lambda spec: replace(spec, passes=(spec.passes[0], *passes)))


def set_to(owner: object, name: str, value: Any) -> Break:
    return lambda patch: patch.setattr(owner, name, value)


def _fits_or_not(core: Drafting, candidate: Candidate) -> Decision:
    candidate.held_blocks = core.blocks(candidate.request.known_tokens)
    return candidate.draft.account.decide(core, candidate.request, candidate.hit, candidate.held_blocks)


def _with_room_for_output(core: Drafting, candidate: Candidate) -> Decision:
    decision = RECLAIM_UNTIL_IT_FITS.decide(core, candidate)
    if decision is ADMIT:
        candidate.held_blocks = core.blocks(core.final_kv_tokens(candidate.request))
        if candidate.held_blocks - candidate.hit.blocks > core.store.free_blocks:
            core.store.release(candidate.request, candidate.hit.blocks, 0, returns=False)
            return NO_BLOCKS
    return decision


def _something_or_nothing(self: Advance, core: Drafting, draft: StepDraft, request: Request, want: int) -> int | None:
    return draft.meter.grant(want, request.computed, decode=False, admitting=False) or None


TESTS = (SLOT_IS_FREE, MATCH_PREFIX, RECLAIM_UNTIL_IT_FITS)
DECODE = Advance(prefills=False, after_self_preemption=AfterSelfPreemption.NEXT)

RULES: dict[str, tuple[Break, str]] = {
    "prefill and decode are two forwards": (passes_behind_admission(Advance(), Run()), "m1_basic_fcfs"),
    "the turn goes on behind the prefill": (
        passes_behind_admission(Advance(decodes=False), Run(), DECODE, Run()), "m2_chunking"),
    "decodes in the order in which prompts ended": (spec_with(list_order="admission"), "m3_step_budget_exhausted"),
    "chunks are capped": (flags(max_tokens_per_prefill_chunk=8192), "m2_chunking"),
    "prefills of an iteration are capped": (flags(max_tokens_per_prefill_step=1 << 20), "m3_step_budget_exhausted"),
    "prefixes are matched at admission": (admission(SLOT_IS_FREE, RECLAIM_UNTIL_IT_FITS), "m4_prefix_reuse"),
    "a misfit is lost": (admission(*TESTS, misfit=Misfit.STOPS), "m5_admit_oom_drop"),
    "a misfit ends the scan": (admission(*TESTS, misfit=Misfit.IS_SKIPPED), "m5_admit_oom_drop"),
    "leaves are evicted for a prompt": (admission(*TESTS[:2], admit.Test(_fits_or_not)), "m5_admit_oom_drop"),
    "no room is kept for outputs": (admission(*TESTS[:2], admit.Test(_with_room_for_output)), "m6_decode_oom"),
    "there is no watermark": (spec_with(admission=Optimistic(watermark_blocks=4)), "m5_admit_oom_drop"),
    "decodes evict leaves too": (set_to(Advance, "_make_room", lambda *_: False), "m6_decode_oom"),
    "who lacks a block fails": (spec_with(preemption=SelfPreemption()), "m6_decode_oom"),
    "nobody gives way for him": (spec_with(preemption=Newest()), "m6_decode_oom"),
    "the others go on": (
        passes_behind_admission(
            Advance(decodes=False), Run(restart=False), Advance(prefills=False), Run()), "m6_decode_oom"),
    "the first token is not checked": (without(Quirk.FIRST_TOKEN_NOT_CHECKED), "m1_basic_fcfs"),
    "the cache is not given back": (without(Quirk.CACHE_LEAKS), "m1_basic_fcfs"),
    "prompts enter the tree": (set_to(LeakyTreeStore, "computed", lambda *_: None), "m4_prefix_reuse"),
    "a prompt that was cached whole takes an empty chunk": (
        set_to(Advance, "_grant", _something_or_nothing), "m7_evict_lru"),
    "a match is a use": (set_to(LeakyTree, "_tick", lambda self: 0), "m7_evict_lru"),
    "defect: a split inside a block hides the older branch": (mended("hides-older"), "m4_prefix_reuse"),
    "defect: blocks that are not full are shared": (mended("shares-partial"), "m9_partial_block_full_edge"),
    "defect: leaves in use are evicted": (mended("evicts-used"), "m6_decode_oom"),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_unbroken(name: str):
    """Else the rows below would say nothing."""
    assert not noticed(name)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_pinned(rule: str, monkeypatch: Patch):
    """Broken, it is noticed by the scenario that its row names."""
    break_it, scenario = RULES[rule]
    break_it(monkeypatch)
    assert noticed(scenario)
