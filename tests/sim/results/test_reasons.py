"""Every preemption, eviction and end has a reason, and they add up."""

from __future__ import annotations

from collections.abc import Callable

from sim.results.metrics import compute
from sim.results.run import RunResult

Runs = Callable[..., RunResult]


def test_reasons_add_up_to_what_they_are_of(busy: RunResult) -> None:
    metrics = compute(busy)
    for what, name in (
        ("preempted", "num_preemptions"),
        ("evicted_blocks", "evicted_blocks"),
        ("deferred_steps", "num_deferred_steps"),
        ("rejected", "num_rejected"),
        ("timed_out", "num_timed_out"),
        ("cancelled", "num_cancelled"),
    ):
        assert sum(metrics.reasons[what].values()) == metrics.value(name), what


def test_most_frequent_first(busy: RunResult) -> None:
    for counts in compute(busy).reasons.values():
        assert list(counts.values()) == sorted(counts.values(), reverse=True)


def test_swaps_are_told_from_recomputes(busy_run: Runs) -> None:
    metrics = compute(busy_run(policies={"preemption": {"name": "newest", "parameters": {"mode": "swap"}}},
                               host_blocks=100))  # fmt: skip
    assert metrics.value("num_swaps")
    swapped = sum(times for reason, times in metrics.reasons["preempted"].items() if reason.startswith("swap, "))
    assert swapped == metrics.value("num_swaps")
    assert metrics.value("swapped_bytes") == metrics.value("swapped_blocks") * 16 * 131_072


def test_bytes_of_recomputed_tokens_need_a_model(busy: RunResult, busy_run: Runs) -> None:
    row = compute(busy)["recomputed_bytes"]
    assert (row.value, row.state, row.note) == (None, "n/a", "the cost model names no model")
    profiled = compute(busy_run(cost={"kind": "profile", "name": "h100-llama-3.1-8b-bf16"}))
    assert profiled.value("recomputed_tokens")
    assert profiled.value("recomputed_bytes") == profiled.value("recomputed_tokens") * 131_072
