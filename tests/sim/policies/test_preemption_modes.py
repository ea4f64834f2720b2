"""What becomes of a victim: recomputed, swapped, or at an end; and which of the first two costs less."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.shape import StepShape
from sim.core.engine import EngineCore
from sim.core.lifecycle import State
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE, Reference
from sim.kv.host import HostSpec
from sim.policies.cheaper import Cheaper
from sim.policies.protocols import PreemptionPolicy
from sim.policies.registry import PREEMPTION


class PerToken:
    """10 µs per token of a prefill."""

    def seconds(self, shape: StepShape) -> float:
        return 10e-6 * shape.prefill_tokens


def victim_of(policy: PreemptionPolicy, host: HostSpec) -> tuple[EngineCore, Request]:
    """Two prompts of 32 in 5 blocks of 16: the second gives way with 32 tokens in 2 blocks."""
    spec = replace(Reference(num_blocks=5).spec(UNKNOWN_HARDWARE), preemption=policy, host=host)
    core = EngineCore(spec)
    requests = [
        Request(name, prompt_tokens=32, max_tokens=9, arrival_ns=at) for at, name in enumerate(("stays", "goes"))
    ]
    for request in requests:
        core.submit(request, stop_after=9)
    for _ in range(2):
        plan = core.plan_step()
        assert plan is not None
        core.commit_step(plan, 1)
    return core, requests[1]


@pytest.mark.parametrize("name", ["newest", "least-urgent"])
@pytest.mark.parametrize(
    ("mode", "state"), [("recompute", State.QUEUED), ("swap", State.SWAPPED), ("fail", State.FAILED)]
)
def test_a_policy_says_what_becomes_of_its_victim(name: str, mode: str, state: State) -> None:
    policy = PREEMPTION.make(name, mode=mode)
    assert policy.may_swap is (mode == "swap")
    _, goes = victim_of(policy, HostSpec(10))
    assert goes.state is state


def test_a_wrong_mode_is_told() -> None:
    with pytest.raises(ValueError, match="mode must be one of recompute, swap, fail, got 'drop'"):
        PREEMPTION.make("newest", mode="drop")


@pytest.mark.parametrize(("us_per_block", "state"), [(79.9, State.SWAPPED), (80.0, State.QUEUED)])
def test_break_even(us_per_block: float, state: State) -> None:
    """32 tokens cost 320 µs again; 2 blocks out and back are 4 moves: 80 µs each is where both are equal."""
    _, goes = victim_of(Cheaper(PerToken()), HostSpec(10, us_per_block * 1000))
    assert goes.state is state


def test_without_room_on_the_host_or_a_cost_model_victims_are_recomputed() -> None:
    for policy, blocks in ((Cheaper(PerToken()), 1), (Cheaper(), 10)):
        _, goes = victim_of(policy, HostSpec(blocks))
        assert goes.state is State.QUEUED
