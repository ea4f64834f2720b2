"""The folder: four files, the same bytes whatever the number of processes, nothing foreign alive, no paths."""

from __future__ import annotations

import getpass
import json
import socket
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sim import compare, make_scenario, replay
from sim.results.comparison.comparison import Comparison
from sim.results.comparison.console import comparison_text
from sim.results.console import WIDTH
from sim.variants import make_plan, points

Base = Callable[..., dict[str, Any]]
HOSTILE = '<script>alert(1)</script>\x1b[31m=cmd|"@here"'


def texts(comparison: Comparison, folder: Path) -> dict[str, bytes]:
    comparison.report(folder)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_same_bytes_from_one_process_and_from_two(make_base: Base, tmp_path: Path) -> None:
    kwargs: dict[str, Any] = {"vary": {"slots": [64, 8]}, "rate_scales": [0.5, 1]}
    one, two = (compare(make_base(), **kwargs, jobs=jobs) for jobs in (1, 2))
    assert comparison_text(one) == comparison_text(two)
    assert texts(one, tmp_path / "one") == texts(two, tmp_path / "two")


def test_the_folder(single: Comparison, tmp_path: Path) -> None:
    found = texts(single, tmp_path / "out")
    assert set(found) == {"compare.html", "compare.md", "compare.json", "cells.parquet"}
    assert len(found["compare.html"]) < 2_000_000
    document = json.loads(found["compare.json"])
    assert document["verdicts"] == single.verdicts
    assert len(document["runs"]) == 4
    cells = pd.read_parquet(tmp_path / "out" / "cells.parquet")
    assert len(cells[cells["metric"] == "goodput_per_s"]) == 4


def test_what_it_says_can_be_run_again(single: Comparison, tmp_path: Path) -> None:
    document = json.loads(texts(single, tmp_path / "out")["compare.json"])
    assert [point.key for point in points(make_plan(document["plan"]))] == list(single.keys)
    run = document["runs"][0]
    assert replay(make_scenario(run["scenario"])).computed.value("goodput_per_s") == run["metrics"]["goodput_per_s"]


def test_stdout_fits_and_has_marks(single: Comparison, seeded: Comparison) -> None:
    for comparison in (single, seeded):
        text = comparison_text(comparison)
        assert max(map(len, text.splitlines())) <= WIDTH
        assert " !" in text
    assert "one deterministic run each: no interval" in comparison_text(single)
    assert "replications: 5 seeds" in comparison_text(seeded)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


def test_foreign_names_stay_text_and_nothing_tells_of_the_machine(make_base: Base, tmp_path: Path) -> None:
    trace = tmp_path / "secret-folder" / "<script>x.csv"
    trace.parent.mkdir()
    rows = "\n".join(f"{at / 10},{50 + at},{20 + at % 9}" for at in range(60))
    trace.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n", encoding="utf-8")
    scenario = make_base(workload={"kind": "trace", "path": str(trace)})
    found = compare(scenario, {HOSTILE: {}, "b": {"engine": {"slots": 1}}})
    files = texts(found, tmp_path / "out")
    html = files["compare.html"].decode()
    assert "script" not in Tags(html).tags
    assert "<script" not in html
    assert "<script" not in files["compare.md"].decode()
    for name in ("compare.html", "compare.md", "compare.json"):
        text = files[name].decode()
        assert "\x1b" not in text
        for told in ("secret-folder", str(tmp_path), socket.gethostname(), f"/{getpass.getuser()}/"):
            assert told not in text, (name, told)
    assert "\x1b" not in comparison_text(found)


def test_a_cell_of_a_notebook_is_small_and_without_script(single: Comparison) -> None:
    html = single._repr_html_()
    assert len(html) < 10_000
    assert "script" not in Tags(html).tags


def test_an_interrupted_comparison_keeps_what_is_done(
    make_base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = 0

    def measured(point: Any, blocks: int | None) -> Any:
        nonlocal done
        done += 1
        if done > 3:
            raise KeyboardInterrupt
        return measure(point, blocks)

    running = sys.modules["sim.compare"]  # `sim.compare` is the function
    measure = running.measure
    monkeypatch.setattr(running, "measure", measured)
    found = compare(make_base(), vary={"slots": [64, 8]}, rate_scales=[0.5, 1])
    assert found.num_missing == 1
    assert found.verdicts[0] == "PARTIAL: 3 of 4 runs done (Ctrl-C); the others are left out"
    files = texts(found, tmp_path / "out")
    assert b"<title>PARTIAL: " in files["compare.html"]
    assert json.loads(files["compare.json"])["partial"] is True
