"""new-token-ratio: how the share moves, and the sums that it is applied to."""

from __future__ import annotations

from typing import Any

import pytest

from sim.core.engine import EngineCore
from sim.core.events import Admitted, Ended, Ran, RoomMade, WentIdle
from sim.core.plan import Verdict
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE
from sim.engines.sglang import Sglang
from sim.kv.content import Content
from sim.policies.ratio import NewTokenRatio
from sim.policies.registry import ADMISSION


def ran(steps: int, *, decodes: int = 4, prefill: int = 0, preempted: bool = False) -> Ran:
    return Ran(steps, decode_requests=decodes, prefill_tokens=prefill, preempted=preempted)


def request(prompt: int, outputs: int, *, written: int = 0) -> Request:
    content = Content((), shared_blocks=0, owner=0)
    made = Request(f"{prompt}/{outputs}", prompt_tokens=prompt, max_tokens=outputs, content=content)
    made.outputs = written
    return made


def test_it_falls_with_every_decode_step_that_fits_down_to_its_least() -> None:
    """From 0.7 to 0.098 in 600 steps; prefills, mixed steps and steps that retract leave it where it is."""
    policy = NewTokenRatio()
    for other in (ran(1, decodes=0, prefill=9), ran(1, prefill=9), ran(1, preempted=True)):
        policy.observe(other)
    assert policy.ratio == 0.7
    policy.observe(ran(300))
    assert policy.ratio == pytest.approx(0.399)
    policy.observe(ran(5000))
    assert policy.ratio == pytest.approx(0.098)


def test_so_many_steps_at_once_or_one_by_one_are_the_same_float() -> None:
    """Law 12 in small."""
    at_once, one_by_one = NewTokenRatio(conservativeness=0.37), NewTokenRatio(conservativeness=0.37)
    at_once.observe(ran(123))
    for _ in range(123):
        one_by_one.observe(ran(1))
    assert at_once.ratio == one_by_one.ratio


def test_after_a_retraction_it_is_what_survivors_have_written_and_a_little_more() -> None:
    """(30 + 10 + 2 * 20) / (100 + 59 + 1) = 0.5, and never more than 1."""
    policy = NewTokenRatio()
    policy.observe(RoomMade((request(5, 100, written=30), request(5, 59, written=10))))
    assert policy.ratio == 0.5
    policy.observe(RoomMade((request(5, 10, written=9),)))
    assert policy.ratio == 1.0


def test_idle_it_is_as_at_the_start() -> None:
    """Unless told otherwise."""
    for reset, ratio in ((True, 1.0), (False, 0.5)):
        policy = NewTokenRatio(conservativeness=2.0, reset_when_idle=reset)
        policy.observe(RoomMade((request(5, 159, written=60),)))
        policy.observe(WentIdle())
        assert policy.ratio == ratio


@pytest.mark.parametrize("max_tokens", [(10, 20, 300), (300, 400, 500), (10, 300, 400), (120, 130, 500)])
def test_what_is_left_to_write_agrees_with_a_walk(max_tokens: tuple[int, ...]) -> None:
    """Nobody above the clip of 100, all, some, and some that come below it on the way; also after somebody has left."""
    core = EngineCore(Sglang(clip=100).spec(UNKNOWN_HARDWARE))
    policy: Any = core.admission
    for outputs in max_tokens:
        core.submit(request(7, outputs), stop_after=outputs)
    while (plan := core.plan_step()) is not None:
        core.cut(plan, min(plan.steps, 3))
        core.commit_step(plan, plan.steps)
        walked = sum(min(each.max_tokens - each.output_tokens, 100) for each in core.running)
        assert policy.left_tokens(core) == walked


def test_requests_that_were_not_admitted_are_walked() -> None:
    """An initial state puts them into the running list; those that were never in it may end."""
    core = EngineCore(Sglang().spec(UNKNOWN_HARDWARE))
    policy: Any = core.admission
    core.place(request(10, 50), computed_tokens=15, output_tokens=6, stop_after=50)
    policy.observe(Ended(request(3, 3), 0))
    assert policy.left_tokens(core) == 44
    policy.observe(Admitted(next(iter(core.running)), 0))
    assert policy.left_tokens(core) == 44


def test_what_can_never_start_is_rejected_at_once() -> None:
    """Prompt + expected output + a page must be less than the pool: 60 + 39 + 1 = 100."""
    core = EngineCore(Sglang(max_total_tokens=100).spec(UNKNOWN_HARDWARE))
    assert core.admission.feasible(core, request(60, 38)).verdict is Verdict.ADMIT
    assert core.admission.feasible(core, request(60, 39)).verdict is Verdict.REJECT


def test_senseless_parameters() -> None:
    for wrong in ({"conservativeness": 0.0}, {"clip_tokens": 0}):
        with pytest.raises(ValueError, match="must be"):
            ADMISSION.make("new-token-ratio", **wrong)
