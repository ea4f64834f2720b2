"""The two waiting queues against a plain list that is sorted whenever somebody looks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.core.queue import FifoQueue, SortedQueue, WaitingQueue
from sim.core.request import Request
from sim.policies.order import Fcfs, Priority

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(("push", "push", "push_front", "remove")), st.integers(0, 30), st.integers(0, 2)),
    max_size=40,
)


def new_request(number: int, priority: int = 0) -> Request:
    return Request(f"r{number}", prompt_tokens=1, max_tokens=1, priority=priority, arrival_ns=number // 3)


def check(queue: WaitingQueue, expected: list[Request]) -> None:
    assert list(queue) == expected
    assert len(queue) == len(expected)
    if expected:
        assert queue.first() is expected[0]


@given(OPERATIONS)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_fifo_is_a_list(operations):
    """Push at the end, requeue in front, remove anywhere."""
    queue, expected = FifoQueue(), []
    for number, (operation, pick, _) in enumerate(operations):
        if operation == "remove":
            if expected:
                queue.remove(expected.pop(pick % len(expected)))
        elif operation == "push":
            expected.append(new_request(number))
            queue.push(expected[-1])
        else:
            expected.insert(0, new_request(number))
            queue.push_front(expected[0])
        check(queue, expected)


@given(OPERATIONS)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_sorted_is_a_list_sorted_by_the_key(operations):
    """Whoever comes, new or back from preemption, stands where the key puts him."""
    queue, expected = Priority().queue(), []
    for number, (operation, pick, priority) in enumerate(operations):
        if operation == "remove":
            if expected:
                queue.remove(expected.pop(pick % len(expected)))
        else:
            expected.append(new_request(number, priority))
            expected.sort(key=lambda request: (request.priority, request.arrival_ns, request.id))
            getattr(queue, operation)(next(one for one in expected if one.id == f"r{number}"))
        check(queue, expected)


def test_priority_ties_go_by_id_as_text():
    """Equal priority and arrival: "r10" stands before "r9", as in vLLM."""
    queue = Priority().queue()
    for number in (9, 10):
        queue.push(Request(f"r{number}", prompt_tokens=1, max_tokens=1))
    assert [request.id for request in queue] == ["r10", "r9"]


def test_a_key_that_changed_is_a_bug():
    """A sorted queue finds what it holds by key; one that changes while waiting is our bug and fails loudly."""
    queue = SortedQueue(lambda request: (request.priority, request.id))
    request = new_request(1)
    queue.push(request)
    queue.push(new_request(2, priority=1))
    request.priority = 5
    with pytest.raises((AssertionError, IndexError)):
        queue.remove(request)


def test_queues_are_new_each_time():
    """Two engines do not share a queue."""
    order = Fcfs()
    first, second = order.queue(), order.queue()
    first.push(new_request(1))
    assert len(second) == 0
