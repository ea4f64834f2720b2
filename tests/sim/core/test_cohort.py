"""A cohort's sums are what adding up its members one by one would give, whatever comes and goes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.core.cohort import FOREVER, DecodeCohort
from sim.core.request import Request

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(1, 50), st.integers(0, 5)),
        st.tuples(st.just("step"), st.integers(1, 40), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 20), st.integers(0, 3)),
        st.tuples(st.just("miss"), st.integers(0, 20), st.just(0)),
    ),
    max_size=40,
)


class Model:
    """The members with explicit counters, moved on one by one."""

    def __init__(self, block_tokens: int) -> None:
        self.runs: dict[Request, list[int]] = {}
        self.cohort = DecodeCohort(block_tokens, self.on_run)
        self.computed: dict[Request, int] = {}
        self.outputs: dict[Request, int] = {}
        self.steps_taken: dict[Request, list[int]] = {}

    def on_run(self, request: Request, start: int, stop: int) -> None:
        self.runs[request] += range(start, stop)

    def join(self, computed: int, outputs: int) -> None:
        request = Request(f"r{len(self.runs)}", prompt_tokens=computed, max_tokens=1000)
        request.computed, request.outputs = computed, outputs
        self.cohort.join(request)
        self.computed[request], self.outputs[request] = computed, outputs
        self.runs[request], self.steps_taken[request] = [], []

    def step(self, steps: int, without: Request | None = None) -> None:
        for at in range(self.cohort.step, self.cohort.step + steps):
            for request in self.computed:
                if request is not without:
                    self.computed[request] += 1
                    self.outputs[request] += 1
                    self.steps_taken[request].append(at)
        self.cohort.step += steps

    def miss(self, request: Request) -> None:
        self.step(1, without=request)
        self.cohort.miss(request)

    def leave(self, request: Request, undelivered: int) -> None:
        """Its newest tokens may never come out."""
        last_step = self.cohort.step - undelivered
        self.cohort.leave(request, last_step=last_step)
        assert request.cohort is None
        assert request.computed == self.computed.pop(request)
        run_before = self.steps_taken[request]
        delivered = [at for at in run_before if at < last_step or at in self.runs[request]]
        assert self.runs[request] == delivered
        assert request.outputs == self.outputs.pop(request) - (len(run_before) - len(delivered))

    def check(self) -> None:
        cohort, size = self.cohort, self.cohort.block_tokens
        cohort.check_invariants(self.computed)
        assert cohort.size == len(self.computed)
        assert cohort.context_tokens == sum(self.computed.values())
        for request, computed in self.computed.items():
            assert request.computed_tokens == computed
            assert request.output_tokens == self.outputs[request]

        def blocks(ahead: int) -> int:
            """More blocks than now, `ahead` steps later."""
            return sum(-(-(computed + ahead) // size) + (computed // -size) for computed in self.computed.values())

        assert cohort.next_blocks() == blocks(1)
        for ahead in (0, 1, 2, size - 1, size, 3 * size + 1):
            assert cohort.blocks_for(ahead) == blocks(ahead)
        if self.computed:
            for free in range(0, 12, 3):
                limit = 3 * size
                steps = cohort.affordable_steps(free, limit)
                assert blocks(steps) <= free
                assert steps == limit or blocks(steps + 1) > free


@given(st.sampled_from((1, 2, 3, 4, 16)), OPERATIONS)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_sums_are_those_of_the_members(block_tokens, operations):
    """Contexts, outputs, blocks needed in the next k steps and how many steps some free blocks pay for."""
    model = Model(block_tokens)
    for operation, number, more in operations:
        members = list(model.computed)
        if operation == "join":
            model.join(number, more)
        elif operation == "step":
            model.step(number)
        elif members:
            request = members[number % len(members)]
            if operation == "miss":
                model.miss(request)
            else:
                model.leave(request, undelivered=min(more, model.cohort.step - request.join_step))
        model.check()


def test_invariants_notice_a_member_too_many():
    """check_invariants is not content with anything."""
    model = Model(4)
    model.join(5, 0)
    model.cohort.check_invariants(model.computed)
    with pytest.raises(AssertionError):
        model.cohort.check_invariants([])
    next(iter(model.computed)).base += 4
    with pytest.raises(AssertionError):
        model.cohort.check_invariants(model.computed)


def test_many_steps_cost_nothing():
    """A step touches no member: the counters of one that has made 10**9 of them are as they were when it joined."""
    cohort = DecodeCohort(16)
    request = Request("r0", prompt_tokens=5, max_tokens=10**10)
    request.computed, request.outputs = 5, 1
    cohort.join(request)
    cohort.step += 10**9
    assert (request.computed, request.outputs) == (5, 1)
    assert request.computed_tokens == 5 + 10**9
    assert cohort.blocks_for(10**9) == 10**9 // 16
    cohort.leave(request, last_step=FOREVER)
    assert (request.computed, request.outputs) == (5 + 10**9, 1 + 10**9)
