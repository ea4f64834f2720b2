"""The summary on stdout: narrow, plain, the same every time, and deaf to what traces contain."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from sim.results.console import WIDTH, print_result, result_text
from sim.results.run import RunResult

Runs = Callable[..., RunResult]


def rows_of(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"token_s": [at + 0.1, at + 0.15], "arrival_s": float(at)} | fields for at in range(count)]


def test_the_summary_of_a_run_by_hand(run_by_hand: Runs) -> None:
    assert result_text(run_by_hand(rows_of(3))).splitlines() == [
        "replay  by-hand 3 rows   engine by-hand   profile linear   seed 0",
        "STABLE   offered 3 = finished 3",
        "! 3 arrivals: too few to see a trend in the backlog (from 20)",
        "duration 2.15 s   offered 1.00 req/s   finished 1.40 req/s   output 2.79 tok/s",
        "SLO none given: no goodput   (--slo ttft=2 --slo tpot=0.05)",
        "",
        "latency, finished       mean       P50       P90       P95       P99       max         n",
        "TTFT            ms       100   100 few   100 few   100 few   100 few       100         3",
        "TPOT            ms      50.0  50.0 few  50.0 few  50.0 few  50.0 few      50.0         3",
        "E2E             ms       150   150 few   150 few   150 few   150 few       150         3",
        "queue           ms         0     0 few     0 few     0 few     0 few         0         3",
        "few: fewer than 10 requests are expected beyond this percentile",
        "",
        "queue blocked by   nothing: nobody waited",
        "KV blocks          used mean 0 % max 0 %   waste 34.4 %",
        "preempted          nobody",
        "steps              none",
    ]


def test_what_has_no_value_says_why(run_by_hand: Runs) -> None:
    text = result_text(run_by_hand([{"token_s": [0.1]}, {"token_s": [0.2]}]))
    assert "TPOT            ms n/a (n=0: all answers have one token)" in text
    assert "TTFT            ms n/a (n=0: no request finished)" in result_text(run_by_hand([]))


def test_an_unstable_run_leads_with_it_and_hides_latencies(busy: RunResult) -> None:
    lines = result_text(busy).splitlines()
    assert lines[1].startswith("UNSTABLE: waiting requests per arrival ")
    assert any(line.startswith("offered 120 = finished ") and "rejected 4 (prompt > KV)" in line for line in lines)
    table = [line for line in lines if line.startswith(("TTFT", "TPOT", "E2E", "queue  "))]
    assert len(table) == 4
    assert all(line.count("n/a") == 6 for line in table)
    assert any(line.startswith("P99 TTFT of offered: inf (") for line in lines)


def test_a_stopped_run_leads_with_it(busy_run: Runs) -> None:
    text = result_text(busy_run(rate_scale=0.25, max_sim_time_s=2))
    assert text.splitlines()[1].startswith("PARTIAL: stopped at 2.00 s of ")


@pytest.mark.parametrize("changes", [{}, {"rate_scale": 0.1}, {"slo": {"ttft_s": 12345.678, "e2e_s": 1e-3}}])
def test_no_line_is_wider_than_a_hundred_columns(busy_run: Runs, changes: dict[str, Any]) -> None:
    run = busy_run(**changes)
    notes = ("a note about " + "many things, " * 30, "x" * 300)
    for line in result_text(replace(run, notes=notes)).splitlines():
        assert len(line) <= WIDTH, line


def test_many_notes_about_one_thing_are_counted(busy: RunResult) -> None:
    text = result_text(replace(busy, notes=("profile x: a", "profile x: b", "profile x: c", "one more")))
    assert text.splitlines()[-2:] == ["! profile x: 3 assumptions (listed in the report, --out)", "! one more"]


def test_text_from_a_trace_does_nothing(busy: RunResult) -> None:
    hostile = "\x1b[31m[bold red]x\x07\n\u202eevil"
    run = replace(busy, trace=replace(busy.trace, name=hostile), profile_name=hostile, notes=(hostile,))
    out = io.StringIO()
    print_result(run, out)
    assert out.getvalue() == result_text(run)
    assert not {"\x1b", "\x07", "\u202e"} & set(out.getvalue())
    assert "\\x1b[31m[bold red]x\\x07\\x0a\\u202eevil" in out.getvalue()


def test_colours_are_for_terminals(busy: RunResult, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = io.StringIO()
    print_result(busy, plain)
    assert "\x1b[" not in plain.getvalue()
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = io.StringIO()
    print_result(busy, coloured)
    assert "\x1b[" in coloured.getvalue()


def test_an_output_that_knows_ascii_only_gets_ascii(busy: RunResult) -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    print_result(replace(busy, trace=replace(busy.trace, name="été")), out)
    out.flush()
    assert b"\\xe9t\\xe9" in raw.getvalue()
