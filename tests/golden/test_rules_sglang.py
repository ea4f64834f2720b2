"""Rules of SGLang that its recordings pin: break one, and a recorded scenario turns red.

What they do not pin has made cases in tests/sim/engines/test_sglang.py and tests/sim/policies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sim.conformance import Recording, Scenario, compare, load
from sim.conformance import sglang as conformance
from sim.core.admit import BLOCKS_ARE_THERE, BUDGET_IS_OPEN, GRANT_CHUNK, MATCH_PREFIX, SLOT_IS_FREE, Admit
from sim.core.drafting import Drafting
from sim.core.engine import EngineCore
from sim.core.events import Ran, RoomMade
from sim.core.passes import Advance, MakeRoom, Pass, Run
from sim.core.plan import ADMIT, StepDraft
from sim.core.request import Request
from sim.engines.sglang import Sglang
from sim.kv.radix import RadixStore
from sim.kv.store import Hit
from sim.policies import fewest, ratio
from sim.policies.arrange import LongestOutputFirst, LongestPrefixFirst
from sim.policies.fewest import FewestOutputs
from sim.policies.order import Fcfs
from sim.policies.pages import PageMeter
from sim.policies.ratio import NO_TOKENS, NewTokenRatio, RatioAccount

Patch = pytest.MonkeyPatch
Break = Callable[[Patch], None]


def recording() -> Recording:
    found = load(Path(__file__).parent / "sglang.json")
    assert found is not None
    return found


SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in recording().scenarios}


def notices(name: str) -> bool:
    """A broken core may also fall over its own assertions."""
    recorder, scenario = conformance.SglangRecorder(), SCENARIOS[name]
    try:
        return compare(recorder, scenario.output, recorder.emit(scenario.input)).difference is not None
    except (AssertionError, KeyError, IndexError, ValueError):
        return True


# -- ways to break a rule


def set_to(owner: object, name: str, value: Any) -> Break:
    return lambda patch: patch.setattr(owner, name, value)


def flags(**changes: Any) -> Break:
    """Configure the engine otherwise than the recording says."""
    preset = conformance.preset
    return set_to(conformance, "preset", lambda input: preset(input).model_copy(update=changes))


def specs(**changes: Any) -> Break:
    """Build the engine otherwise."""
    build = Sglang.spec
    return set_to(Sglang, "spec", lambda self, hardware: replace(build(self, hardware), **changes))


def passes(change: Callable[[tuple[Pass, ...]], tuple[Pass, ...]]) -> Break:
    build = Sglang._passes
    return set_to(Sglang, "_passes", lambda self: change(build(self)))


def unlatched(now: tuple[Pass, ...]) -> tuple[Pass, ...]:
    admit = Admit(BUDGET_IS_OPEN, SLOT_IS_FREE, MATCH_PREFIX, BLOCKS_ARE_THERE, GRANT_CHUNK)
    return tuple(admit if isinstance(each, Admit) else each for each in now)


def decided(fits: Callable[[RatioAccount, EngineCore, Request, Hit], bool]) -> Break:
    """Put candidates to another test."""

    def other(self: RatioAccount, engine: Any, request: Request, hit: Any, blocks: int) -> Any:
        return ADMIT if fits(self, engine, request, hit) else NO_TOKENS

    return set_to(RatioAccount, "decide", other)


def need(engine: EngineCore, request: Request, hit: Hit) -> int:
    return request.known_tokens - hit.tokens + request.max_tokens - request.output_tokens + engine.block_tokens


def room(account: RatioAccount, engine: EngineCore, hit: Hit) -> float:
    return account.rem_total(engine) - hit.free_blocks * engine.block_tokens


def charged(change: Callable[[Any, Request, int, bool], int]) -> Break:
    """Charge so much more (or less) than SGLang."""
    charge = RatioAccount.charge

    def other(self: RatioAccount, engine: Any, request: Request, tokens: int, *, last: bool) -> None:
        charge(self, engine, request, tokens, last=last)
        assert self._total is not None
        self._total += change(engine, request, tokens, last)

    return set_to(RatioAccount, "charge", other)


def hearing(kind: type, change: Callable[[NewTokenRatio, Any], None]) -> Break:
    observe = NewTokenRatio.observe

    def other(self: NewTokenRatio, event: Any) -> None:
        change(self, event) if isinstance(event, kind) else observe(self, event)

    return set_to(NewTokenRatio, "observe", other)


def decays_always(policy: NewTokenRatio, event: Ran) -> None:
    policy._steps += event.steps if event.decode_requests else 0


def never_reestimates(policy: NewTokenRatio, event: RoomMade) -> None:
    pass


def with_prefills(now: tuple[Pass, ...]) -> tuple[Pass, ...]:
    """Decodes join whatever is drafted."""
    return (*now[:2], Advance(prefills=False, joins_prefills=True), *now[2:])


class OnlyIfNobodyNew(Advance):
    def apply(self, core: Drafting, draft: StepDraft) -> None:
        if not draft.items:
            super().apply(core, draft)


def admits_first(now: tuple[Pass, ...]) -> tuple[Pass, ...]:
    _, admit, *rest = now
    return (admit, OnlyIfNobodyNew(decodes=False), *rest)


def without_spare(now: tuple[Pass, ...]) -> tuple[Pass, ...]:
    return tuple(MakeRoom() if isinstance(each, MakeRoom) else each for each in now)


def decodes_first(now: tuple[Pass, ...]) -> tuple[Pass, ...]:
    return (MakeRoom(spare_tokens_each=20), Advance(prefills=False), Run(), *now[:2], Run())


def keeps_list_order(self: FewestOutputs, requests: list[Request]) -> list[Request]:
    return requests


def uncut(self: PageMeter, want: int, context: int, *, decode: bool, admitting: bool) -> int | None:
    return want


def everybody_strict(self: PageMeter, want: int, context: int, *, decode: bool, admitting: bool) -> int | None:
    return want if want < self.input_left else None


def stays_latched(patch: Patch) -> None:
    leave = EngineCore._leave_running

    def other(self: Any, request: Request, **how: Any) -> None:
        latched = self.latched
        leave(self, request, **how)
        self.latched = latched

    patch.setattr(EngineCore, "_leave_running", other)


@dataclass(frozen=True)
class Rule:
    broken: Break
    scenario: str


RULES = {
    "a candidate's output counts": Rule(
        decided(lambda account, engine, request, hit: request.known_tokens - hit.tokens < account.rem_total(engine)),
        "s3_overcommit_admit",
    ),
    "and must be less than what is left": Rule(
        decided(lambda account, engine, request, hit: need(engine, request, hit) <= room(account, engine, hit)),
        "s4_retract",
    ),
    "with a page to spare": Rule(
        decided(
            lambda account, engine, request, hit: (
                need(engine, request, hit) < room(account, engine, hit) + engine.block_tokens
            )
        ),
        "s4_retract",
    ),
    "running requests are discounted": Rule(set_to(NewTokenRatio, "ratio", 1.0), "s1_fcfs_chunk"),
    "running requests count": Rule(set_to(NewTokenRatio, "left_tokens", lambda self, engine: 0), "s4_retract"),
    "a candidate's prefix is locked while it is tested": Rule(
        decided(lambda account, engine, request, hit: need(engine, request, hit) < account.rem_total(engine)),
        "s4_retract",
    ),
    "a page more is charged": Rule(
        charged(lambda engine, request, tokens, last: -engine.block_tokens), "s1_fcfs_chunk"
    ),
    "prefills are charged in whole pages": Rule(
        charged(lambda engine, request, tokens, last: tokens - engine.blocks(tokens) * engine.block_tokens),
        "s4b_paged_retract",
    ),
    "an answer is charged with the last chunk only": Rule(
        charged(lambda engine, request, tokens, last: 0 if last else request.max_tokens), "s1_fcfs_chunk"
    ),
    "an answer is charged": Rule(
        charged(lambda engine, request, tokens, last: -request.max_tokens if last else 0), "s3_overcommit_admit"
    ),
    "all of an answer is charged, what is written too": Rule(
        charged(lambda engine, request, tokens, last: -request.output_tokens if last else 0), "s4_retract"
    ),
    "a refusal latches": Rule(passes(unlatched), "s3_overcommit_admit"),
    "who leaves opens the latch": Rule(stays_latched, "s4_retract"),
    "the ratio decays": Rule(set_to(ratio, "DECAY_STEPS", 1 << 40), "s2_lpm_order"),
    "not in a step that retracts": Rule(hearing(Ran, decays_always), "s4_retract"),
    "a retraction sets it anew": Rule(hearing(RoomMade, never_reestimates), "s4_retract"),
    "20 tokens each beside what was written": Rule(set_to(ratio, "SPARE_TOKENS", 10), "s4_retract"),
    "conservativeness scales it": Rule(flags(schedule_conservativeness=1.0), "s4_retract"),
    "from 0.7 to 14 % of it in 600 steps": Rule(set_to(ratio, "MIN_FACTOR", 0.5), "s1_fcfs_chunk"),
    "prefills wait for no decode": Rule(passes(decodes_first), "s4_retract"),
    "decodes do not join prefills": Rule(passes(with_prefills), "s4_retract"),
    "the chunk in flight goes first": Rule(passes(admits_first), "s1_fcfs_chunk"),
    "prompts are cut": Rule(set_to(PageMeter, "grant", uncut), "s1_fcfs_chunk"),
    "the first may be longer than max_prefill_tokens": Rule(
        set_to(PageMeter, "grant", everybody_strict), "s5_no_chunk_max_prefill"
    ),
    "others leave some of it": Rule(set_to(PageMeter, "grant", uncut), "s5_no_chunk_max_prefill"),
    "max_running_requests": Rule(flags(max_running_requests=3), "s6_lof"),
    "the most max_tokens first": Rule(set_to(Sglang, "_order", lambda self: Fcfs()), "s6_lof"),
    "the longest prefix first": Rule(set_to(Sglang, "_order", lambda self: LongestOutputFirst()), "s2_lpm_order"),
    "lpm sorts short queues": Rule(
        set_to(Sglang, "_order", lambda self: LongestPrefixFirst(longest_queue=4)), "s2_lpm_order"
    ),
    "of equals the longest prompt": Rule(
        set_to(fewest, "_worth", lambda request: (request.output_tokens, request.prompt_tokens)), "s4_retract"
    ),
    "survivors are put in order": Rule(set_to(FewestOutputs, "stay_first", keeps_list_order), "s4_retract"),
    "who was retracted goes to the back": Rule(specs(requeue="front"), "s4_retract"),
    "20 tokens each are made blank": Rule(passes(without_spare), "s4_retract"),
    "prompts enter the tree when computed": Rule(set_to(RadixStore, "hears_computed", False), "s1_fcfs_chunk"),
    "the chunk budget": Rule(flags(chunked_prefill_size=64), "s1_fcfs_chunk"),
    "page size": Rule(flags(page_size=8), "s4b_paged_retract"),
    "budgets are charged in pages": Rule(set_to(PageMeter, "_paged", lambda self, tokens: tokens), "s4b_paged_retract"),
}


@pytest.mark.parametrize("name", RULES)
def test_the_recording_notices(name: str, monkeypatch: Patch) -> None:
    rule = RULES[name]
    rule.broken(monkeypatch)
    assert notices(rule.scenario)


def test_nothing_broken_nothing_noticed() -> None:
    assert not any(notices(name) for name in SCENARIOS)
