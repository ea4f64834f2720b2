"""Results of benchmarks: case E10 with its numbers, and files that are none."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from sim.results.bench import BadBench, Bench, read_bench

FILES = Path(__file__).parents[2] / "cases" / "files"


def texts(bench: Bench, holds: bool) -> list[str]:
    return [check.text for check in bench.checks if check.holds == holds]


def test_e10_bare_infinity_and_a_file_that_agrees_with_itself() -> None:
    bench = read_bench(FILES / "E10_bench_infinity.jsonl")
    assert bench.request_rate == math.inf
    assert bench.max_concurrency == 1
    assert bench.completed / bench.duration_s == pytest.approx(0.0320083, abs=1e-7)
    assert bench.usable
    found = "\n".join(texts(bench, True))
    assert "request_throughput 0.0320083 = completed / duration 0.0320083" in found
    assert "TTFT + 999 TPOT = 31,241.357 ms = mean E2E" in found
    assert "rate x E2E = 1.0000 requests at once, max_concurrency 1" in found
    assert "100,000 output tokens asked for are used, not 95,664" in found
    assert bench.value("mean_e2el_ms") == pytest.approx(31241.357, abs=1e-3)


def test_e10_failed_rows_are_left_out() -> None:
    bench = read_bench(FILES / "E10_bench_detailed.json")
    assert (bench.completed, bench.failed) == (2, 1)
    assert bench.value("mean_ttft_ms") == pytest.approx(250)
    assert bench.value("mean_tpot_ms") == pytest.approx(100)
    assert bench.n["tpot"] == 1
    assert bench.output_tokens == 6
    assert bench.output_tokens / bench.duration_s == pytest.approx(3)
    assert bench.streamed
    assert bench.usable
    assert "1 failed of 3 left out of all latencies" in texts(bench, True)


def test_e10_not_streamed() -> None:
    bench = read_bench(FILES / "E10_non_streaming.json")
    assert not bench.streamed
    assert not bench.usable
    assert texts(bench, False)[0].startswith("not streamed - TTFT/TPOT unusable")
    assert bench.value("mean_ttft_ms") is None
    assert bench.value("mean_tpot_ms") is None
    assert bench.value("mean_e2el_ms") == pytest.approx(2100)


def written(folder: Path, **changes: Any) -> Path:
    raw = {"completed": 10, "duration": 5.0, "total_output_tokens": 500, "request_throughput": 2.0} | changes
    path = folder / "bench.json"
    path.write_text(json.dumps(raw), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"request_throughput": 3.0}, "request_throughput 3 = completed / duration 2"),
        ({"mean_e2el_ms": 4000, "max_concurrency": 4}, "rate x E2E = 8.0000 requests at once, max_concurrency 4"),
        ({"mean_ttft_ms": 700, "mean_tpot_ms": 0, "mean_e2el_ms": 700}, "not streamed"),
    ],
)
def test_a_file_that_contradicts_itself_is_flagged(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    bench = read_bench(written(tmp_path, **changes))
    assert any(each.startswith(text) for each in texts(bench, False))
    assert not bench.usable


def test_of_several_lines_the_last_counts(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text('{"completed": 1, "duration": 1}\n{"completed": 2, "duration": 1}\n', encoding="utf-8")
    bench = read_bench(path)
    assert (bench.completed, bench.results_in_file) == (2, 2)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("no json", "neither JSON nor JSON lines"),
        ("[1, 2]", "a table of fields"),
        ("{}", "completed must be a number, got None"),
        ('{"completed": 1, "duration": NaN}', "duration must be a number, got nan"),
        ('{"completed": 1, "duration": 0}', "duration must be > 0"),
        ("[" * 100_000, "neither JSON nor JSON lines"),
        (
            '{"completed": 1, "duration": 1, "ttfts": [0.1], "output_lens": [1, 2], "itls": [[]], "input_lens": [3]}',
            "must be equally long",
        ),
        (
            '{"completed": 1, "duration": 1, "ttfts": ["x"], "output_lens": [1], "itls": [[]], "input_lens": [3]}',
            "must hold numbers",
        ),
    ],
)
def test_what_is_no_result_is_said(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "bench.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadBench, match=problem):
        read_bench(path)
