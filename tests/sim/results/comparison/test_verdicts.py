"""The fixed wording of what a comparison says first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sim import compare
from sim.results.comparison import verdicts
from sim.results.comparison.capacity import Capacity
from sim.results.comparison.comparison import Comparison, Place
from sim.results.comparison.replications import Difference
from sim.results.comparison.verdicts import ONE_RUN, Headline, capacity_line, difference_line
from sim.results.comparison.words import COLUMNS

GOODPUT = Headline(COLUMNS[0], "goodput")
B, A = "slots=8", "slots=64"


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Difference(2.16, 2.33, 1, 0.079), f"goodput: {B} 2.33, {A} 2.16 req/s (+7.9 %), {ONE_RUN}"),
        (
            Difference(2.16, 2.33, 10, 0.079, 0.068, 0.091),
            f"goodput: {B} 2.33, {A} 2.16 req/s: difference +7.9 % [+6.8, +9.1], 10 replications",
        ),
        (
            Difference(2.16, 2.17, 10, 0.006, -0.011, 0.023),
            f"no difference shown between {B} and {A} in goodput: +0.6 % [-1.1, +2.3], 10 replications",
        ),
        (
            Difference(2.16, 2.17, 10, 0.006, -0.114, 0.126),
            f"cannot tell between {B} and {A} in goodput (interval ±12 %); more replications: --seeds 30",
        ),
        (
            Difference(2.16, 2.16, 10, 0.0, 0.0, 0.0),
            f"no difference between {B} and {A} in goodput: the same in all 10 replications",
        ),
    ],
)
def test_a_difference(single: Comparison, monkeypatch: pytest.MonkeyPatch, found: Difference, text: str) -> None:
    monkeypatch.setattr(Comparison, "difference", lambda *_: found)
    assert difference_line(single, single.places[0], B, GOODPUT) == text


def test_capacities(single: Comparison) -> None:
    def line(b: tuple[float | None, ...], a: tuple[float | None, ...], variant: str = B) -> str:
        return capacity_line(single, variant, Capacity(b, 1.0, 4.0), Capacity(a, 1.0, 4.0))

    assert line((3.2,), (2.4,)) == f"{B} holds the SLO up to 3.20 req/s, {A} up to 2.40: +33 %, {ONE_RUN}"
    assert line((2.4,), (2.4,)) == f"{B} holds the SLO up to 2.40 req/s, {A} up to 2.40: the same, {ONE_RUN}"
    assert line((4.0,), (2.4,)) == f"{B} holds the SLO at every rate tried (highest 4.00): limit not found"
    assert line((None,), (2.4,)) == f"{B} holds the SLO at no rate tried (lowest 1.00)"
    assert line((3.0, 3.2), (2.2, 2.4)).endswith("difference +35 % [+34.8, +34.8], 2 replications")
    assert line((2.4,), (2.4,), A) == f"{A} holds the SLO up to 2.40 req/s"


def test_of_a_comparison(single: Comparison, seeded: Comparison) -> None:
    assert any(ONE_RUN in line for line in single.verdicts)
    assert any(line.endswith("5 replications") for line in seeded.verdicts)
    assert not any(ONE_RUN in line for line in seeded.verdicts)


def test_overload_is_unstable_and_its_latencies_are_not_compared(make_base: Callable[..., dict[str, Any]]) -> None:
    found = compare(make_base(), vary={"slots": [64, 1]})
    assert any(line.startswith("UNSTABLE at ") and " slots=1: waiting requests" in line for line in found.verdicts)
    place = found.places[0]
    assert found.difference(place, "slots=1", "p99_ttft_s") is None
    assert found.difference(place, "slots=1", "goodput_per_s") is not None
    assert "n/a" in found._repr_html_()


def test_foreign_names_do_not_act(make_base: Callable[..., dict[str, Any]]) -> None:
    found = compare(make_base(), {"a\x1b[31m": {}, "b\n=cmd": {"engine": {"slots": 2}}})
    text = "\n".join([*verdicts.verdict_lines(found), *found.why])
    assert "\x1b" not in text
    assert "\\x1b" in text


def test_places_are_told_by_what_was_offered(single: Comparison) -> None:
    low, high = (single.offered_per_s(place) or 0.0 for place in single.places)
    assert high == pytest.approx(2 * low)
    assert single.places[0] == Place("synthetic", 0.5)
