"""Two logs side by side: what counts as a difference, and how it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sim.conformance import Comparison, Log, check, compare
from sim.policies.registry import UnknownName
from tests.sim.conformance.fake import FakeRecorder, recorded, scenario


def compared(change: Callable[[Log], Any], tokens: int = 3) -> Comparison:
    """The fake's log beside a recording that was changed."""
    log = recorded(tokens)
    change(log)
    return compare(FakeRecorder(), log, FakeRecorder().emit({"tokens": tokens}))


def test_equal_logs_have_no_difference() -> None:
    """Ours counts as JSON would hold it (tuples, whole numbers as keys), and both sides as `comparable` makes them."""
    assert compared(lambda log: None) == Comparison(3, None)


@pytest.mark.parametrize(
    ("change", "steps", "difference"),
    [
        (lambda log: log["steps"][1].update(left=7), 2, "step 1: left is 2, recorded 7"),
        (lambda log: log["steps"][1].pop("left"), 2, "step 1: left is 2, not recorded"),
        (lambda log: log["steps"][1].update(over=False), 2, "step 1: over is absent, recorded false"),
        (lambda log: log["steps"][2].update(step=9), 3, "step 9: step is 2, recorded 9"),
        (lambda log: log["steps"][1]["who"].append(3), 2, "step 1: who is 1, recorded 2"),
        (lambda log: log["steps"][1].update(took_s=0.31), 2, "step 1: took_s is 0.3, recorded 0.31"),
        (lambda log: log["steps"][1]["batch"][0]["n"].update({"1": 5}), 2, "step 1: batch[0].n.1 is 2, recorded 5"),
        (lambda log: log["steps"][0].update(batch=[]), 1, 'step 0: batch is [{"id": 0, "n": {"1": 2}}], recorded []'),
        (lambda log: log["steps"].pop(), 2, "3 steps, recorded 2"),
        (lambda log: log["total"].update({"0": 4}), 3, "total.0 is 3, recorded 4"),
        (lambda log: log.pop("total"), 3, 'total is {"0": 3}, not recorded'),
    ],
)
def test_the_first_difference_is_told_in_words(change: Callable[[Log], Any], steps: int, difference: str) -> None:
    assert compared(change) == Comparison(steps, difference)


def test_a_long_value_is_cut() -> None:
    difference = compared(lambda log: log["steps"][0].update(left="x" * 1000)).difference
    assert difference is not None
    assert difference.endswith("x ...")
    assert len(difference) < 400


def test_printed_fields_are_counted_and_not_required() -> None:
    def change(log: Log) -> None:
        log["steps"][1]["guess"] = 5
        log["steps"][2]["guess"] = 6
        log["metrics"]["mean"] = 2

    notes = ("guess differs in 2 of 3 steps, first at step 1: guess is 1, recorded 5", "metrics.mean is 1, recorded 2")
    assert compared(change) == Comparison(3, None, notes)


def test_printed_fields_are_told_up_to_the_first_difference() -> None:
    """Behind it everything may differ."""

    def change(log: Log) -> None:
        log["steps"][0]["guess"] = log["steps"][2]["guess"] = 5
        log["steps"][1]["left"] = 7

    notes = ("guess differs in 1 of 2 steps, first at step 0: guess is 1, recorded 5",)
    assert compared(change) == Comparison(2, "step 1: left is 2, recorded 7", notes)


@pytest.mark.usefixtures("fake_engine")
def test_check_makes_our_log_from_the_inputs() -> None:
    assert check(scenario(tokens=5)) == Comparison(5, None)
    assert check(scenario(tokens=5, output=recorded(4))).difference == "step 0: left is 5, recorded 4"


@pytest.mark.usefixtures("fake_engine")
def test_what_is_not_built_is_not_covered() -> None:
    assert check(scenario(speculation=True)) == Comparison(0, None, not_covered="speculation")


def test_an_engine_without_recorder_is_unknown() -> None:
    with pytest.raises(UnknownName, match="unknown conformance recorder 'fake'"):
        check(scenario())
