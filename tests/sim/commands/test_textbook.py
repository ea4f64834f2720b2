"""The worked examples of the design come out row for row, from the engine core."""

from __future__ import annotations

from sim.commands.textbook import budget_rows, kv_rows


def test_sharing_a_budget_of_6() -> None:
    """2 decodes + 4 prompt tokens a tick, and 8, 4, 0 of the prompt's 12 left."""
    assert budget_rows() == [(0, 2, 4, 8), (1, 2, 4, 4), (2, 2, 4, 0)]


def test_optimistic_growth_into_a_pool_of_4() -> None:
    """At step 2 A wants a third block, 5 > 4, and gives way itself; nobody is let in by the step that preempted."""
    rows = kv_rows("optimistic")
    assert rows[:7] == [
        (0, "A", "advanced", 3),
        (0, "B", "advanced", 4),
        (1, "A", "advanced", 4),
        (1, "B", "advanced", 4),
        (2, "A", "preempted", 2),
        (2, "B", "advanced", 2),
        (3, "B", "advanced", 2),
    ]
    assert rows[7:9] == [(3, "A", "admitted", 4), (3, "B", "finished", 2)]
    assert rows[-1] == (7, "A", "finished", 0)
    assert sum(row[1:3] == ("A", "advanced") for row in rows) == 6  # max_new tokens, none twice


def test_conservative_reserves_a_and_lets_b_wait() -> None:
    """A reserves 3 of 4 blocks and B would need 2: B starts when A is done."""
    rows = kv_rows("conservative")
    assert next(row for row in rows if row[1] == "B") == (6, "B", "admitted", 1)
    assert [row for row in rows if row[2] == "finished"] == [(5, "A", "finished", 0), (10, "B", "finished", 0)]
