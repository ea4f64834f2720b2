"""The folder of results: whole or not there, the same bytes, one self-contained page, nothing foreign in it alive."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sim.results import report
from sim.results.render import markdown_text
from sim.results.report import write_report
from sim.results.run import RunResult
from workloads.trace import BadRow

Runs = Callable[..., RunResult]

FILES = {"report.html", "report.md", "metrics.json", "requests.parquet", "steps.parquet", "events.parquet"}
HOSTILE = '<script>alert(1)</script>\x1b[31m=cmd|"@here" [x](http://evil.example) '


class Tags(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def folder(busy: RunResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "out"
    write_report(busy, out)
    return out


def test_the_folder_has_everything_and_nothing_is_left_beside_it(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == FILES
    assert [path.name for path in folder.parent.iterdir()] == ["out"]


def test_the_page_is_one_file_without_scripts_or_links_outside(folder: Path) -> None:
    page = Tags((folder / "report.html").read_text())
    assert page.open == []
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    sources = [attrs["src"] for tag, attrs in page.tags if tag == "img"]
    assert len(sources) == 10
    assert all(source is not None and source.startswith("data:image/svg+xml;base64,") for source in sources)
    assert all(attrs.get("alt") for tag, attrs in page.tags if tag == "img")
    assert (folder / "report.html").stat().st_size < 1_000_000


def test_the_verdict_comes_first_and_the_title_says_it(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    assert "<title>UNSTABLE: inline on vllm-v1</title>" in text
    assert text.index("Waiting requests per arrival") < text.index("<table>") < text.index("<figure>")
    assert (folder / "report.md").read_text().startswith("# UNSTABLE: inline on vllm-v1\n")


def test_the_same_run_gives_the_same_bytes(busy: RunResult, folder: Path, tmp_path: Path) -> None:
    write_report(busy, tmp_path / "again")
    for name in FILES:
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes(), name


def test_another_process_with_another_hash_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from sim.replay import replay; from sim.scenario import make_scenario\n"
        "from sim.results.console import print_result; from sim.results.report import write_report\n"
        "run = replay(make_scenario({'workload': {'kind': 'bundled'}, 'limit': 300, 'rate_scale': 20, "
        "'slo': {'ttft_s': 1}, 'engine': {'preset': 'vllm-v1', 'num_gpu_blocks_override': 900}}))\n"
        "write_report(run, Path(sys.argv[1])); print_result(run); assert 'matplotlib.pyplot' not in sys.modules"
    )
    digests = set()
    for seed in ("1", "2"):
        out = tmp_path / seed
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", program, str(out)], env=environment, capture_output=True, check=True
        )
        digest = hashlib.sha256(done.stdout)
        for name in sorted(FILES):
            digest.update((out / name).read_bytes())
        digests.add(digest.hexdigest())
    assert len(digests) == 1


def test_nothing_of_this_machine_or_day_is_in_it(folder: Path) -> None:
    words = {str(Path.home()), str(folder), str(Path.cwd()), sys.prefix, socket.gethostname(), os.uname().release}
    words |= {datetime.now(UTC).strftime("%Y-%m-%d"), f"/{getpass.getuser()}/"}
    telling = [word.encode() for word in words if len(word) > 3]  # a host called "vm" is in any compressed file
    for name in FILES:
        content = (folder / name).read_bytes()
        assert not [word for word in telling if word in content], name


def test_foreign_text_stays_text(busy_run: Runs, tmp_path: Path) -> None:
    run = busy_run(hostile=HOSTILE)
    trace = replace(run.trace, name=HOSTILE, bad_rows=(BadRow(f"{HOSTILE}:1", HOSTILE),))
    for row in run.requests.reason:
        run.requests.reason[row] = HOSTILE
    write_report(replace(run, trace=trace, notes=(HOSTILE,), profile_name=HOSTILE), tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert not {"script"} & {tag for tag, _ in Tags(page).tags}
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m=cmd" in page
    text = (tmp_path / "out" / "report.md").read_text()
    assert "<script" not in text
    assert "@here" not in text
    assert "http://" not in text
    assert not re.search(r"(?m)^(\| |- )?=cmd", text)
    for content in (page, text):
        assert "\x1b" not in content


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("=cmd|' /C calc'!A0", "\\=cmd\\|' /C calc'\\!A0"),
        ("a_b*c`d", "a\\_b\\*c\\`d"),
        ("<b>&", "&lt;b&gt;&amp;"),
        ("[x](javascript:1)", "\\[x\\](javascript:1)"),
        ("line\nbreak", "line\\\\x0abreak"),
        ("#12 @me", "&#35;12 &#64;me"),
    ],
)
def test_markdown_of_foreign_text(text: str, safe: str) -> None:
    assert markdown_text(text) == safe


def test_a_failure_leaves_the_old_folder_as_it_was(
    busy: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    write_report(busy, out)
    before = (out / "metrics.json").stat().st_mtime_ns

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(report, "write_parquet", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(busy, out)
    assert (out / "metrics.json").stat().st_mtime_ns == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with pytest.raises(OSError, match="disk full"):
        write_report(busy, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_an_older_folder_is_replaced_whole(busy: RunResult, tmp_path: Path) -> None:
    out = tmp_path / "deeper" / "out"
    out.mkdir(parents=True)
    (out / "stale.txt").write_text("x")
    write_report(busy, out)
    assert {path.name for path in out.iterdir()} == FILES
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_partial_run_says_so_in_its_title(busy_run: Runs, tmp_path: Path) -> None:
    write_report(busy_run(max_sim_time_s=0.5), tmp_path / "out")
    assert "<title>PARTIAL: inline on vllm-v1</title>" in (tmp_path / "out" / "report.html").read_text()


def test_a_run_of_nothing_has_a_report(run_by_hand: Runs, tmp_path: Path) -> None:
    write_report(run_by_hand([]), tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES


@pytest.mark.parametrize("module", ["sim", "sim.results.run", "sim.results.metrics", "sim.results.console"])
def test_what_is_always_loaded_is_light(module: str) -> None:
    heavy = "{'pandas', 'pyarrow', 'matplotlib', 'scipy', 'torch', 'jinja2'}"
    program = f"import sys, {module}; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
