"""One JSON document, finite throughout, with vLLM's names and definitions at the top."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sim.results.export import max_concurrent, metrics_json
from sim.results.measure import Measured
from sim.results.metrics import compute
from sim.results.run import RunResult
from sim.results.tokens import expand

Runs = Callable[..., RunResult]


def exported(run: RunResult) -> dict[str, Any]:
    measured = Measured(run)
    document: dict[str, Any] = json.loads(metrics_json(measured, compute(measured)))
    return document


def test_the_top_level_is_what_counting_gives(busy: RunResult) -> None:
    found, measured = exported(busy), Measured(busy)
    done = np.flatnonzero(measured.served)
    tokens = {int(row): expand(busy.logs[0], int(row)) for row in done}
    assert (found["num_prompts"], found["completed"], found["failed"]) == (120, len(done), 120 - len(done))
    assert found["total_output_tokens"] == sum(len(times) for times in tokens.values())
    ttft_ms = [(tokens[row][0] - busy.trace.arrival_ns[row]) / 1e6 for row in tokens]
    itl_ms = np.concatenate([np.diff(times) for times in tokens.values()]) / 1e6
    assert found["mean_ttft_ms"] == pytest.approx(np.mean(ttft_ms))
    assert found["median_ttft_ms"] == pytest.approx(np.median(ttft_ms))
    assert found["std_ttft_ms"] == pytest.approx(np.std(ttft_ms))
    assert found["p99_itl_ms"] == pytest.approx(np.percentile(itl_ms, 99))
    assert found["std_itl_ms"] == pytest.approx(np.std(itl_ms))
    assert found["output_throughput"] == pytest.approx(found["total_output_tokens"] / found["duration"])
    seconds = (np.concatenate(list(tokens.values())) - measured.start_ns) // 10**9
    assert found["max_output_tokens_per_s"] == np.bincount(seconds).max()
    assert found["request_goodput"] == found["metrics"]["goodput_per_s"]["value"]


def test_ours_says_what_each_value_is_of(busy: RunResult) -> None:
    found = exported(busy)
    assert found["metrics"]["p99_offered_ttft_s"] == {
        "value": None,
        "unit": "s",
        "n": 120,
        "population": "offered",
        "state": "inf",
        "better": "lower",
    }
    assert found["state"] == "UNSTABLE"
    assert found["reasons"]["rejected"] == {"prompt > KV": 4}
    assert [row["client"] for row in found["clients"]] == ["client-0", "client-1", "client-2"]


def test_every_number_is_finite_even_without_any_data(run_by_hand: Runs) -> None:
    for run in (run_by_hand([]), run_by_hand([{"token_s": [0.0]}])):
        found = exported(run)
        assert all(math.isfinite(value) for value in found.values() if isinstance(value, float))
        assert "date" not in found
    assert exported(run_by_hand([]))["mean_ttft_ms"] is None


def test_most_at_once_is_exact_and_leaving_comes_before_coming() -> None:
    assert max_concurrent(np.array([0, 5, 5]), np.array([5, 9, 7])) == 2
    assert max_concurrent(np.array([], np.int64), np.array([], np.int64)) == 0
    rng = np.random.default_rng(0)
    starts = rng.integers(0, 50, 30)
    ends = starts + rng.integers(1, 20, 30)
    brute = max(int(((starts <= t) & (t < ends)).sum()) for t in range(80))
    assert max_concurrent(starts, ends) == brute
