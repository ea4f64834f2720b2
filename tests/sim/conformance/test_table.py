"""The table says what was compared, and below it what was not."""

from __future__ import annotations

from collections import Counter

import pytest

from sim.conformance import check
from sim.conformance.table import HEADER, markdown_table
from tests.sim.conformance.fake import recorded, scenario


@pytest.mark.usefixtures("fake_engine")
def test_a_row_per_engine_and_what_no_row_shows() -> None:
    wrong, guessed = recorded(), recorded()
    wrong["steps"][1]["left"] = 7
    guessed["metrics"]["mean"] = 2
    scenarios = [
        scenario("long", tokens=1200),
        scenario("wrong", output=wrong),
        scenario("guessed", output=guessed),
        scenario("drafted", speculation=True),
    ]
    results = [(each, check(each)) for each in scenarios]
    assert markdown_table(results, Counter({"other": 4, "another": 1})).split("\n") == [
        *HEADER.split("\n"),
        "| `fake` | fake==1.0 | 3 of 4 | 1,205 | 1 |",
        "",
        "- `fake`, not covered: speculation (1 scenario).",
        "- `fake`, DIFFERS: wrong at step 1: left is 2, recorded 7.",
        "- `fake`, not required: guessed: metrics.mean is 1, recorded 2.",
        "- `fake`, no recording shows: counting up.",
        "- Recorded, engine not built yet: another (1 scenario), other (4 scenarios).",
    ]


def test_nothing_left_to_say_is_nothing_said() -> None:
    assert markdown_table([], Counter()) == HEADER
