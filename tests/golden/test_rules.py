"""Every rule that SEMANTICS.md states for plain full attention is pinned: break it, and something turns red.

A row of the table: the rule, how it is broken, and who notices: a recording, random scenarios beside the reference, or
a made scenario where neither does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pytest

from sim.conformance import compare, vllm_v1
from sim.core import admit
from sim.core.admit import GRANT_CHUNK, NO_BLOCKS, Admit, Misfit
from sim.core.cohort import FOREVER, DecodeCohort
from sim.core.engine import EngineCore
from sim.core.in_flight import InFlight
from sim.core.passes import Advance, AfterSelfPreemption, Run
from sim.core.plan import ADMIT, Decision, StepDraft
from sim.core.queue import FifoQueue
from sim.core.request import Request
from sim.core.spec import EngineSpec
from sim.engines import VllmV1
from sim.kv.hashed import HashedStore, ReleaseOrder
from sim.policies.admission import Optimistic
from sim.policies.budget import DecodeFirst, ListOrder, TokenMeter
from sim.policies.protocols import PreemptionPolicy
from tests.golden import fuzz
from tests.golden.scenarios import Scenario
from tests.golden.test_fuzz import FOUND, job, scenario
from tests.golden.test_vllm_v1 import scenario_of

Patch = pytest.MonkeyPatch
Break = Callable[[Patch], None]


# -- who notices


@dataclass(frozen=True)
class Recording:
    name: str

    def notices(self) -> bool:
        recorded = scenario_of(self.name)
        turns = vllm_v1.Loop(recorded.input).turns()
        ours = {"steps": list(islice(turns, len(recorded.output["steps"]) + 10))}  # a broken core may go on for ever
        return compare(vllm_v1.VllmV1Recorder(), recorded.output, ours).difference is not None


@dataclass(frozen=True)
class Fuzz:
    seeds: range = range(150)
    mode: str = "in stretches"

    def notices(self) -> bool:
        return any(fuzz.check_seed(seed, self.mode)[0] is not None for seed in self.seeds)


@dataclass(frozen=True)
class Made:
    scenario: Scenario
    mode: str = "in stretches"

    def notices(self) -> bool:
        return fuzz.check(self.scenario, **fuzz.MODES[self.mode])[0] is not None


Witness = Recording | Fuzz | Made


def noticed(witness: Witness) -> bool:
    """A broken core may also fall over its own assertions."""
    try:
        return witness.notices()
    except (AssertionError, KeyError, IndexError, ValueError):
        return True


# -- ways to break a rule


def flags(**changes: Any) -> Break:
    """Configure the engine otherwise than the recording says."""
    return specs(lambda spec, config: type(config)(**{**config.model_dump(), **changes}))


def specs(change: Callable[[EngineSpec, VllmV1], Any]) -> Break:
    """Build the engine otherwise."""

    def apply(patch: Patch) -> None:
        build = VllmV1.spec

        def changed(self: VllmV1, hardware: Any) -> EngineSpec:
            spec = change(build(self, hardware), self)
            return build(spec, hardware) if isinstance(spec, VllmV1) else spec

        patch.setattr(VllmV1, "spec", changed)

    return apply


def passes(*, after_self_preemption: AfterSelfPreemption = AfterSelfPreemption.END, **admission: Any) -> Break:
    def change(spec: EngineSpec, config: VllmV1) -> EngineSpec:
        old = next(each for each in spec.passes if isinstance(each, Admit))
        new = (Advance(after_self_preemption=after_self_preemption), Admit(*old.tests, **admission), Run())
        return replace(spec, passes=new)

    return specs(change)


def with_test(old: admit.Test, new: admit.Test) -> Break:
    def change(spec: EngineSpec, config: VllmV1) -> EngineSpec:
        admission = next(each for each in spec.passes if isinstance(each, Admit))
        return replace(spec, passes=(Advance(), Admit(*(new if one is old else one for one in admission.tests)), Run()))

    return specs(change)


def budget(kind: type[ListOrder]) -> Break:
    def change(spec: EngineSpec, config: VllmV1) -> EngineSpec:
        old = spec.budget
        assert isinstance(old, ListOrder)
        return replace(spec, budget=kind(old.max_tokens, old.chunk_cap, old.adaptive_cap, old.chunked))

    return specs(change)


def set_to(owner: object, name: str, value: Any) -> Break:
    return lambda patch: patch.setattr(owner, name, value)


def victim(choose: Callable[[EngineCore], Request]) -> Break:
    class Other(PreemptionPolicy):
        def victim(self, engine: EngineCore, request: Request, draft: StepDraft) -> Request:
            return choose(engine)

    return specs(lambda spec, config: replace(spec, preemption=Other()))


def decide(change: Callable[[Any, Request, Any, int], int], *, margin: Callable[[Any, int], int]) -> Break:
    """Other numbers in the admission test: blocks needed, blocks kept free."""

    def decided(self: Optimistic, engine: Any, request: Request, hit: Any, chunk_blocks: int) -> Decision:
        blocks = engine.blocks(request.known_tokens) if self.full_sequence else chunk_blocks
        need = change(engine, request, hit, blocks)
        return NO_BLOCKS if need + margin(engine, self.watermark_blocks) > engine.store.free_blocks else ADMIT

    return set_to(Optimistic, "decide", decided)


def _trust_the_policy(change: Break) -> Break:
    """And nobody looks whether the blocks are really there."""

    def asked(core: EngineCore, candidate: Any) -> Decision:
        account: Any = candidate.draft.account
        decision: Decision = account.decide(core, candidate.request, candidate.hit, candidate.held_blocks)
        return decision

    def apply(patch: Patch) -> None:
        change(patch)
        patch.setattr(admit, "ask_for_blocks", asked)

    return apply


def _need(engine: Any, request: Request, hit: Any, blocks: int) -> int:
    return blocks - hit.blocks + hit.free_blocks  # type: ignore[no-any-return]


def _while_others_run(engine: Any, margin: int) -> int:
    return margin if engine.running else 0


def _list_shrinks_under_the_scan(self: Advance, core: EngineCore, draft: StepDraft) -> Any:
    """Go by position in a list that victims drop out of, without shifting the position."""
    at = 0
    while at < len(core.running):
        yield list(core.running)[at]
        at += 1


def _watermark_for_all(patch: Patch) -> None:
    apply = Advance.apply

    def applied(self: Advance, core: EngineCore, draft: StepDraft) -> None:
        margin = core.spec.admission.watermark_blocks  # type: ignore[attr-defined]
        core.store.free_blocks -= margin
        apply(self, core, draft)
        core.store.free_blocks += margin

    patch.setattr(Advance, "apply", applied)


def _admit_after_preemption(patch: Patch) -> None:
    apply = Admit.apply

    def applied(self: Admit, core: EngineCore, draft: StepDraft) -> None:
        hidden, draft.preempted = draft.preempted, []
        apply(self, core, draft)
        draft.preempted = hidden

    patch.setattr(Admit, "apply", applied)


def _blocks_back_one_step_later(patch: Patch) -> None:
    plan_step, finish = EngineCore.plan_step, EngineCore._finish
    late: list[tuple[EngineCore, Request]] = []
    patch.setattr(EngineCore, "_finish", lambda self, request: late.append((self, request)))

    def planned(self: EngineCore) -> Any:
        plan = plan_step(self)
        while late:
            finish(*late.pop(0))
        return plan

    patch.setattr(EngineCore, "plan_step", planned)


def _abort_after_update(patch: Patch) -> None:
    update, abort = vllm_v1.Loop._update, vllm_v1.Loop._abort
    late: list[Any] = []

    def aborted(self: Any, turn: Any, when: str, key: str) -> None:
        if when == "during_step":
            late.append((self, turn, when, key))
        else:
            abort(self, turn, when, key)

    def updated(self: Any, turn: Any) -> None:
        update(self, turn)
        while late:
            abort(*late.pop(0))

    patch.setattr(vllm_v1.Loop, "_abort", aborted)
    patch.setattr(vllm_v1.Loop, "_update", updated)


def _after_preempt(change: Callable[[EngineCore, Request], None]) -> Break:
    def apply(patch: Patch) -> None:
        preempt = EngineCore.preempt

        def preempted(self: EngineCore, draft: StepDraft, request: Request, **kwargs: Any) -> None:
            preempt(self, draft, request, **kwargs)
            change(self, request)

        patch.setattr(EngineCore, "preempt", preempted)

    return apply


def _forget_outputs(core: EngineCore, request: Request) -> None:
    request.outputs = min(request.outputs, 1)


def _lose_token_in_flight(core: EngineCore, request: Request) -> None:
    request.outputs -= core._in_flight.undelivered_tokens(request)
    core._in_flight._late.pop(request, None)


def _name_prompts_only(patch: Patch) -> None:
    submit = EngineCore.submit

    def submitted(self: EngineCore, request: Request, *, stop_after: int) -> Any:
        if request.content is not None:
            in_prompt = request.prompt_tokens // self.block_tokens
            request.content.shared_blocks = min(request.content.shared_blocks, in_prompt)
        return submit(self, request, stop_after=stop_after)

    patch.setattr(EngineCore, "submit", submitted)


def _register_later(patch: Patch) -> None:
    """Name a new request's blocks as it computes the next tokens, not as it is admitted."""
    attach, grow = HashedStore.attach, HashedStore.grow
    new: dict[Request, int] = {}

    def attached(self: HashedStore, request: Request, hit: Any) -> None:
        new[request] = hit.blocks
        attach(self, request, hit)

    def grown(self: HashedStore, request: Request, new_blocks: int, full_blocks: int) -> None:
        grow(self, request, new_blocks, new.pop(request, full_blocks))

    patch.setattr(HashedStore, "attach", attached)
    patch.setattr(HashedStore, "grow", grown)


def _hit_everything(patch: Patch) -> None:
    match = HashedStore.match

    def matched(self: HashedStore, request: Request) -> Any:
        request.prompt_tokens += 1
        hit = match(self, request)
        request.prompt_tokens -= 1
        return hit

    patch.setattr(HashedStore, "match", matched)


def _charge_hits(core: EngineCore, candidate: Any) -> Decision:
    context = candidate.hit.blocks * core.block_tokens
    candidate.draft.meter.spend(context, 0, decode=False)
    return admit._grant_chunk(core, candidate)


def _newest_twin_first(patch: Patch) -> None:
    add = HashedStore._add_twin

    def added(self: HashedStore, first: Any, content: Any, at: int, upto: int) -> Any:
        twin = add(self, first, content, at, upto)
        twin.twins.remove(twin)
        twin.twins.insert(0, twin)
        self._heads[twin.key(0)] = twin
        return twin

    patch.setattr(HashedStore, "_add_twin", added)


def _finish_like_a_victim(patch: Patch) -> None:
    known_tokens = InFlight.known_tokens

    def counted(self: InFlight, request: Request, *, scheduled: int, over: bool = False) -> int:
        return known_tokens(self, request, scheduled=scheduled)

    patch.setattr(InFlight, "known_tokens", counted)


def _release_to_the_front(self: ReleaseOrder, run: Any) -> None:
    self.insert_after(self.end, run)


def _shallow_end_first(patch: Patch) -> None:
    release = HashedStore.release

    def released(self: HashedStore, request: Request, *args: Any, **kwargs: Any) -> None:
        order = list(self._order)
        release(self, request, *args, **kwargs)
        new = [run for run in self._order if run not in order]
        for run in new:
            self._order.remove(run)
        for run in reversed(new):
            self._order.append(run)

    patch.setattr(HashedStore, "release", released)


def _cached_before_blank(self: HashedStore, blocks: int) -> None:
    self.free_blocks -= blocks
    eaten = min(blocks, self.cached_blocks)
    if eaten:
        self._evict(eaten)


def _a_missed_step_costs_nothing(self: DecodeCohort, request: Request) -> None:
    """A decode that missed a step goes on as if it had not."""


TWO_AND_FOUR_BLOCKS = scenario(
    job("r0", 5, 11, ids=range(4)),
    job("r1", 13, 2, turn=2, ids=range(3)),
    num_gpu_blocks_override=5,
    max_model_len=16,
    enable_prefix_caching=True,
)
"""The head lacks one block until the running decode has filled one that both have in common. No recording has this."""

TOO_LONG_FOR_THE_REST = scenario(
    job("r0", 6, 2),
    job("r1", 8, 2),
    job("r2", 2, 2),
    max_num_batched_tokens=10,
    max_model_len=10,
    enable_chunked_prefill=False,
)
"""Without chunked prefill r1 does not fit behind r0, and r2 would."""

MISSED = FOUND["after a missed step nothing is in flight, so one block more may be known (depth 2)"]


@dataclass(frozen=True)
class Rule:
    text: str
    broken: Break
    noticed_by: tuple[Witness, ...]


RULES = [
    Rule(
        "at most max_num_batched_tokens in a step",
        flags(max_num_batched_tokens=10_000),
        (Recording("chunked_prefill_small_budget"),),
    ),
    # Running requests
    Rule("decodes are not privileged: only list order counts", budget(DecodeFirst), (Fuzz(),)),
    Rule(
        "a decode that the pass does not get to misses the step",
        set_to(DecodeCohort, "miss", _a_missed_step_costs_nothing),
        (Fuzz(range(400)), Made(MISSED)),
    ),
    Rule(
        "the fcfs victim is the last of running",
        victim(lambda engine: next(iter(engine.running))),
        (Recording("kv_preempt_fcfs"), Recording("random_tight_200")),
    ),
    Rule(
        "the priority victim is max (priority, arrival) over all running",
        victim(lambda engine: next(reversed(engine.running))),
        (Recording("priority_preempt"), Recording("random_priority_100")),
    ),
    Rule(
        "the first in list order on ties",
        victim(lambda engine: max(reversed(engine.running), key=lambda one: (one.priority, one.arrival_ns))),
        (Fuzz(),),
    ),
    Rule(
        "a victim already scheduled in this step gives its tokens back to the budget",
        set_to(TokenMeter, "refund", lambda self, tokens, context, *, decode: None),
        (Recording("priority_budget_restore"),),
    ),
    Rule(
        "a victim in front of the scan shifts it by one",
        set_to(Advance, "_in_order", _list_shrinks_under_the_scan),
        (Recording("random_priority_100"),),
    ),
    Rule(
        "if the victim is the request itself, the running pass ends",
        passes(after_self_preemption=AfterSelfPreemption.NEXT),
        (Fuzz(range(400)), Made(MISSED)),
    ),
    # Waiting requests
    Rule("nobody is admitted by a step that has preempted", _admit_after_preemption, (Recording("kv_preempt_fcfs"),)),
    Rule(
        "a head whose blocks are refused stops the scan",
        passes(misfit=Misfit.IS_SKIPPED),
        (Recording("random_tight_200"),),
    ),
    Rule(
        "without chunked prefill a head beyond the budget stops the scan",
        passes(misfit=Misfit.IS_SKIPPED),
        (Made(TOO_LONG_FOR_THE_REST),),
    ),
    Rule(
        "without chunked prefill a prompt is not cut",
        flags(enable_chunked_prefill=True),
        (Recording("no_chunked_prefill"),),
    ),
    Rule(
        "a prompt is cut to the budget",
        flags(enable_chunked_prefill=False),
        (Recording("chunked_prefill_small_budget"),),
    ),
    Rule("running requests at most max_num_seqs", flags(max_num_seqs=64), (Recording("max_num_seqs_limit"),)),
    Rule(
        "max_num_active_seqs goes before max_num_seqs",
        flags(max_num_active_seqs=None),
        (Recording("max_active_seqs_limit"),),
    ),
    Rule(
        "the waiting heap is by (priority, arrival, id as text)",
        flags(scheduling_policy="fcfs"),
        (Recording("priority_preempt"),),
    ),
    # The long-prefill cap
    Rule(
        "the cap cuts each request's tokens",
        flags(long_prefill_token_threshold=0),
        (Recording("long_prefill_threshold"), Recording("long_prefill_adaptive")),
    ),
    Rule(
        "but only while running + waiting > 1 at the start",
        set_to(ListOrder, "_cap", lambda self, engine: self.chunk_cap),
        (Recording("long_prefill_threshold"), Fuzz()),
    ),
    Rule(
        "adaptive: at least an equal share of the budget",
        flags(long_prefill_token_threshold_adaptive=False),
        (Recording("long_prefill_adaptive"),),
    ),
    Rule(
        "an arrival behind a blocked head changes that share (not in the text: found by the fuzz)",
        specs(lambda spec, config: setattr(spec.budget, "counts_queue", False) or spec),
        (Made(FOUND["an arrival behind a blocked head lowers the adaptive cap and so lets the head in"]),),
    ),
    # Blocks
    Rule(
        "one block of the pool is the null block",
        specs(
            lambda spec, config: config.model_copy(
                update={"num_gpu_blocks_override": config.num_gpu_blocks_override + 1}
            )
        ),
        (Recording("fcfs_basic"), Recording("kv_preempt_fcfs")),
    ),
    Rule(
        "an answer ends at max_model_len",
        flags(max_model_len=100_000),
        (Recording("max_model_len_stop"),),
    ),
    Rule(
        "a victim's blocks are all free at once",
        _after_preempt(lambda core, request: core.store.take(1)),
        (Recording("kv_preempt_fcfs"),),
    ),
    Rule(
        "a request starts only if its whole known sequence fits",
        flags(scheduler_reserve_full_isl=False),
        (Recording("kv_reserve_full"),),
    ),
    Rule(
        "without that flag only its first chunk must fit",
        flags(scheduler_reserve_full_isl=True),
        (Recording("kv_preempt_no_reserve"),),
    ),
    Rule(
        "known includes the outputs of a resumed request",
        decide(
            lambda engine, request, hit, blocks: (
                min(blocks, engine.blocks(request.prompt_tokens)) - hit.blocks + hit.free_blocks
            ),
            margin=_while_others_run,
        ),
        (Fuzz(),),
    ),
    Rule(
        "the watermark is of the total, null block included",
        specs(
            lambda spec, config: replace(
                spec,
                admission=Optimistic(
                    int(config.watermark * spec.store().total_blocks), config.scheduler_reserve_full_isl
                ),
            )
        ),
        (Recording("kv_watermark"), Fuzz()),
    ),
    Rule("the watermark holds for who is admitted", flags(watermark=0.0), (Recording("kv_watermark"),)),
    Rule(
        "but not while nobody runs",
        decide(_need, margin=lambda engine, margin: margin),
        (Fuzz(),),
    ),
    Rule("running requests ignore it", _watermark_for_all, (Recording("kv_watermark"), Fuzz())),
    Rule(
        "blocks of a finished request are free for the next schedule",
        _blocks_back_one_step_later,
        (Recording("kv_preempt_fcfs"),),
    ),
    Rule(
        "aborts inside a step are applied before its update",
        _abort_after_update,
        (Recording("abort_midflight"), Recording("async_abort")),
    ),
    # Preemption
    Rule("outputs are kept, to be recomputed", _after_preempt(_forget_outputs), (Recording("kv_preempt_fcfs"),)),
    Rule(
        "fcfs: a victim goes to the front of the queue",
        set_to(FifoQueue, "push_front", FifoQueue.push),
        (Recording("kv_preempt_fcfs"),),
    ),
    # Prefix caching
    Rule(
        "generated tokens count too",
        _name_prompts_only,
        (Recording("prefix_lru_eviction"), Recording("random_tight_prefix_200"), Fuzz()),
    ),
    Rule(
        "and while their request still runs",
        set_to(HashedStore, "learns_from", lambda self, request: False),
        (Fuzz(),),
    ),
    Rule(
        "blocks are registered as they are scheduled: a later admission of the same step hits them",
        _register_later,
        (Recording("prefix_shared"),),
    ),
    Rule(
        "a stretch stops before a block fills that the head may hit",
        set_to(EngineCore, "_steps_to_next_full_block", lambda self: FOREVER),
        (Made(TWO_AND_FOUR_BLOCKS),),
    ),
    Rule("at least one token is always computed", _hit_everything, (Recording("prefix_full_hit"),)),
    Rule(
        "hits that nobody references count against free",
        _trust_the_policy(decide(lambda engine, request, hit, blocks: blocks - hit.blocks, margin=_while_others_run)),
        (Recording("random_tight_prefix_200"), Fuzz()),
    ),
    Rule(
        "hits that somebody references do not",
        decide(lambda e, r, hit, blocks: blocks, margin=_while_others_run),
        (Recording("random_tight_prefix_200"), Fuzz()),
    ),
    Rule("hit tokens cost no budget", with_test(GRANT_CHUNK, admit.Test(_charge_hits)), (Recording("prefix_shared"),)),
    Rule("equal content: the first registered is found", _newest_twin_first, (Fuzz(range(400)),)),
    Rule("released last block first", _shallow_end_first, (Recording("prefix_lru_eviction"), Fuzz())),
    Rule(
        "cached blocks to the back",
        set_to(ReleaseOrder, "append", _release_to_the_front),
        (Recording("prefix_lru_eviction"),),
    ),
    Rule(
        "uncached blocks first", set_to(HashedStore, "take", _cached_before_blank), (Recording("prefix_lru_eviction"),)
    ),
    # Asynchronous scheduling
    Rule(
        "step k + 1 is scheduled before the output of k is processed",
        flags(async_scheduling=False),
        (Recording("async_fcfs"),),
    ),
    Rule(
        "who ends by length with the step in flight is not scheduled again",
        set_to(EngineCore, "_set_aside_ended", lambda self: None),
        (Recording("async_fcfs"),),
    ),
    Rule(
        "a victim's token in flight is still delivered",
        _after_preempt(_lose_token_in_flight),
        (Recording("async_preempt"),),
    ),
    Rule(
        "a decode's unseen token fills no block yet",
        set_to(InFlight, "unknown_tokens", lambda self, request, *, scheduled: 0),
        (Recording("async_random_priority_prefix"), Fuzz()),
    ),
    Rule(
        "at update, blocks are registered up to computed minus what is in flight",
        _finish_like_a_victim,
        (Recording("async_random_priority_prefix"), Fuzz()),
    ),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
def test_a_broken_rule_is_noticed(rule: Rule, monkeypatch: pytest.MonkeyPatch):
    """Each witness of a rule turns red when the rule is broken."""
    rule.broken(monkeypatch)
    assert rule.noticed_by
    assert [witness for witness in rule.noticed_by if not noticed(witness)] == []


@pytest.mark.parametrize("made", [TWO_AND_FOUR_BLOCKS, TOO_LONG_FOR_THE_REST], ids=["two and four", "too long"])
def test_made_scenarios_are_green(made: Scenario):
    """Unbroken, the made scenarios agree with the reference, step by step and in stretches."""
    for mode in fuzz.MODES:
        assert not Made(made, mode).notices()
