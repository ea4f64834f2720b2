"""The command line as a user meets it: what it prints, what it leaves on disk, how it fails."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-c", "from sim.commands.main import main; main()"]


def tokenwork(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, check=False, cwd=cwd)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    rows = "".join(f"{at / 10},{20 + at % 7},{5 + at % 3}\n" for at in range(50))
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    return path


def one_line(result: subprocess.CompletedProcess[str], status: int) -> str:
    """The error, which is all there is."""
    assert (result.returncode, result.stdout) == (status, ""), result
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr.removeprefix("tokenwork: ").rstrip("\n")


def test_replay_prints_the_result_and_nothing_else_on_stdout(trace: Path) -> None:
    first, second = tokenwork("replay", str(trace)), tokenwork("replay", str(trace))
    assert first.returncode == 0, first.stderr
    assert "offered 50 = finished 50" in first.stdout
    assert "h100-llama-3.1-8b-bf16" in first.stdout
    assert first.stdout == second.stdout  # law 6
    assert "requests/s" in first.stderr


def test_out_holds_the_report_the_metrics_and_the_tables(trace: Path, tmp_path: Path) -> None:
    outs = [tmp_path / "one", tmp_path / "two"]
    for out in outs:
        result = tokenwork("replay", str(trace), "--slo", "ttft=1", "--out", str(out))
        assert result.returncode == 0, result.stderr
    names = {path.name for path in outs[0].iterdir()}
    assert {"report.html", "report.md", "metrics.json", "requests.parquet"} <= names
    for name in ("report.html", "report.md", "metrics.json", "requests.parquet"):
        assert (outs[0] / name).read_bytes() == (outs[1] / name).read_bytes()  # law 6
    text = (outs[0] / "metrics.json").read_text()
    assert json.loads(text)["completed"] == 50
    assert str(tmp_path) not in text + (outs[0] / "report.html").read_text()


def test_out_that_exists_is_not_touched_without_force(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    out.mkdir()
    (out / "mine.txt").write_text("precious")
    error = one_line(tokenwork("replay", str(trace), "--out", str(out)), 2)
    assert error == f"--out {out}: exists already (--force replaces it)"
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


def test_a_malformed_row_names_file_and_line_and_leaves_nothing(trace: Path, tmp_path: Path) -> None:
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,-3,5\n")
    out = tmp_path / "report"
    assert one_line(tokenwork("replay", str(trace), "--out", str(out)), 1).startswith("trace.csv:3: prompt_tokens=-3")
    assert not out.exists()
    skipped = tokenwork("replay", str(trace), "--on-bad-row", "skip")
    assert skipped.returncode == 0
    assert "offered 1 " in skipped.stdout


@pytest.mark.parametrize(
    ("header", "arguments", "status", "expected"),
    [
        ("arrival_s,promt_tokens,output_tokens", [], 1, "prompt_tokens"),
        (
            "arrival_s,prompt_tokens,output_tokens",
            ["--columns", '{"arrival": "when"}'],
            1,
            "when",
        ),
        ("arrival_s,prompt_tokens,output_tokens", ["--columns", "{"], 2, "--columns: not JSON"),
        ("arrival_s,prompt_tokens,output_tokens", ["--columns", '{"arival": "when"}'], 2, "did you mean 'arrival'"),
    ],
)
def test_unknown_columns(trace: Path, header: str, arguments: list[str], status: int, expected: str) -> None:
    trace.write_text(header + "\n0,10,5\n")
    assert expected in one_line(tokenwork("replay", str(trace), *arguments), status)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["replay", "no-such.csv"], "no-such.csv: No such file or directory"),
        (["replay"], "give a TRACE or a --scenario (a bundled trace: tokenwork replay chat-1k)"),
        (
            ["replay", "chat-1k", "--max-num-seq", "5"],
            "engine vllm-v1 has no flag --max-num-seq; did you mean --max-num-seqs? "
            "(see: tokenwork list engine --verbose)",
        ),
        (["replay", "chat-1k", "--max-num-seqs", "0"], "replay: engine.max_num_seqs must be >= 1, got 0"),
        (["replay", "chat-1k", "--max-num-seqs"], "--max-num-seqs needs a value"),
        (
            ["replay", "chat-1k", "--engine", "vllm"],
            "trtllm-static-batch, vllm-v0, vllm-v1; did you mean 'vllm-v1'?",
        ),
        (["replay", "chat-1k", "--profile", "h200"], "unknown profile 'h200'"),
        (["replay", "chat-1k", "--slo", "ttft"], "--slo ttft: must be ttft=SECONDS, tpot=SECONDS or e2e=SECONDS"),
        (["replay", "chat-1k", "--slo", "ttft=0"], "replay: slo.ttft_s must be > 0, got 0"),
        (["replay", "chat-1k", "--limit", "0"], "replay: limit must be >= 1, got 0"),
        (["replay", "chat-1k", "--admission", "optimist"], "unknown admission policy 'optimist'"),
        (
            ["replay", "chat-1k", "--admission", "optimistic:watermark=3"],
            "policies.admission: admission policy 'optimistic' has no parameter 'watermark': "
            "it has watermark_blocks, full_sequence",
        ),
        (["replay", "chat-1k", "--scenario", "missing.toml"], "missing.toml: No such file or directory"),
        (["conformance", "missing"], "no folder of recordings at missing"),
        (["conformance", "."], "no recordings in ."),
        (["list", "engines"], "unknown kind 'engines'"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(arguments: list[str], expected: str, tmp_path: Path) -> None:
    assert expected in one_line(tokenwork(*arguments, cwd=tmp_path), 2)


def test_a_misspelt_key_in_a_scenario_file(tmp_path: Path) -> None:
    path = tmp_path / "case.toml"
    path.write_text('[workload]\nkind = "bundled"\n[engine]\npreset = "reference"\ntoken_budgt = 5\n')
    error = one_line(tokenwork("replay", "--scenario", str(path)), 2)
    assert error == "case.toml: engine.token_budgt is not a known key; did you mean 'token_budget'?"


def test_options_win_over_the_scenario_file(tmp_path: Path, trace: Path) -> None:
    path = tmp_path / "case.toml"
    path.write_text(
        'seed = 3\nlimit = 10\n[workload]\nkind = "trace"\npath = "trace.csv"\n'
        '[engine]\npreset = "reference"\nslots = 2\nblock_size = 8\n[cost]\nkind = "linear"\na_s = 1\n'
        "b_s_per_token = 0\n"
    )
    result = tokenwork("replay", "--scenario", str(path), "--slots", "3", "--limit", "20", cwd=tmp_path.parent)
    assert result.returncode == 0, result.stderr
    assert "offered 20 = finished 20" in result.stdout
    assert "engine reference" in result.stdout
    assert "seed 3" in result.stdout


def test_a_request_that_can_never_fit_is_counted_and_told(trace: Path) -> None:
    result = tokenwork("replay", str(trace), "--num-gpu-blocks-override", "3", "--block-size", "8")
    assert result.returncode == 0
    assert "rejected" in result.stdout


def test_limits_end_with_a_partial_result_and_status_0(trace: Path) -> None:
    for option, value in (("--max-steps", "7"), ("--max-sim-time", "1.5")):
        result = tokenwork("replay", str(trace), option, value)
        assert result.returncode == 0, result.stderr
        assert "PARTIAL" in result.stdout
        assert option in result.stdout


def test_ctrl_c_leaves_a_valid_partial_result(tmp_path: Path) -> None:
    path = tmp_path / "long.toml"
    path.write_text(
        '[workload]\nkind = "synthetic"\nnum_requests = 300000\n'
        'arrivals = { kind = "poisson", rate_per_s = 10 }\n'
        'prompt_tokens = { kind = "fixed", tokens = 500 }\noutput_tokens = { kind = "fixed", tokens = 100 }\n'
    )
    out = tmp_path / "out"
    process = subprocess.Popen(
        [*PROGRAM, "replay", "--scenario", str(path), "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(4)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert "PARTIAL" in stdout
    assert "Ctrl-C" in stdout
    assert json.loads((out / "metrics.json").read_text())["completed"] > 0


def test_list_and_textbook() -> None:
    listed = tokenwork("list", "--verbose").stdout
    for name in ("vllm-v1", "--max-num-batched-tokens: int = 8192", "token-work", "h100-llama-3.1-8b-bf16", "mooncake"):
        assert name in listed
    line = "goodput_per_s: requests/s, of offered requests, higher is better, vllm bench serve request_goodput"
    assert line in listed
    assert "2  B        advanced" in tokenwork("textbook").stdout


def test_conformance_says_what_differs_and_emits_our_own_log(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    golden = request.config.rootpath / "tests" / "golden" / "vllm_v1" / "kv_preempt_fcfs.json.gz"
    folder = tmp_path / "recordings"
    folder.mkdir()
    (folder / golden.name).write_bytes(golden.read_bytes())
    same = tokenwork("conformance", str(folder), "--emit", str(tmp_path / "ours"))
    assert same.returncode == 0, same.stderr
    assert "1 recorded scenarios compared, 181 steps: 0 differ" in same.stdout
    emitted = tmp_path / "ours" / "kv_preempt_fcfs.json"
    ours = json.loads(emitted.read_text())
    ours["steps"][12]["free_after"] += 1
    (folder / golden.name).unlink()
    (folder / "broken.json").write_text(json.dumps(ours))
    different = tokenwork("conformance", str(folder))
    assert different.returncode == 1
    assert "DIFFERS at step 12: free_after" in different.stdout


# -- what a first user stumbled over


def test_force_replaces_a_folder_of_results_and_nothing_else(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    assert tokenwork("replay", str(trace), "--out", str(out)).returncode == 0
    assert tokenwork("replay", str(trace), "--out", str(out), "--force").returncode == 0
    (out / "mine.txt").write_text("precious")
    error = one_line(tokenwork("replay", str(trace), "--out", str(out), "--force"), 2)
    assert error == f"--out {out}: holds 'mine.txt', which is no result: --force replaces only a folder of results"
    error = one_line(tokenwork("replay", str(trace), "--out", str(trace), "--force"), 2)
    assert error == f"--out {trace}: is not a folder: --force replaces only a folder of results"
    assert trace.read_text().startswith("arrival_s")
    error = one_line(tokenwork("replay", str(trace), "--out", ".", "--force", cwd=tmp_path), 2)
    assert error == "--out .: is the folder you are in"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--budget", "token-work:max_work=512:weights=bogus"],
            "weights must be one of equal, calibrated, got 'bogus'",
        ),
        (["--budget", "decode-first:max_tokens=1.5"], "max_tokens must be a whole number, got 1.5"),
        (["--budget", "decode-first:chunked=maybe"], "chunked must be true or false, got 'maybe'"),
        (["--budget", "token-work:max_work=nan"], "max_work must be a number, got 'nan'"),
        (["--admission", "conservative:margin_blocks=abc"], "margin_blocks must be a whole number, got 'abc'"),
        (["--rate-scale", "1e-30"], "must leave arrivals below 2**62 ns"),
        (["--format", "azure"], "--format is for trace files, not bundled traces"),
        (["--slo", "ttft=1", "--slo", "ttft=2"], "--slo ttft=2: ttft was given before"),
        (
            ["--cost", '{"kind": "roofline", "device": "l4", "model": "llama-3.1-70b"}'],
            "cost: llama-3.1-70b leaves no room for KV on one l4",
        ),
        (
            ["--cost", '{"kind": "linear", "a_s": 1e9, "b_s_per_token": 0}'],
            "simulated time went beyond 292 years",
        ),
    ],
)
def test_values_that_make_no_sense(arguments: list[str], expected: str) -> None:
    assert expected in one_line(tokenwork("replay", "chat-1k", "--limit", "20", *arguments), 2)


def test_a_budget_policy_keeps_the_engines_own_budget() -> None:
    """`--budget NAME` changes how the budget is shared out, not how large it is."""
    base = ["replay", "chat-1k", "--limit", "200", "--rate-scale", "10", "--max-num-batched-tokens", "512"]
    outs = {budget: tokenwork(*base, "--budget", budget).stdout for budget in ("decode-first", "prefill-first")}
    assert outs["decode-first"] != outs["prefill-first"]


def test_nothing_served_and_stalled_say_so(trace: Path) -> None:
    rejected = tokenwork("replay", str(trace), "--num-gpu-blocks-override", "2")
    assert "NOTHING SERVED: none of 50 requests finished" in rejected.stdout
    stalled = tokenwork("replay", str(trace), "--budget", "list-order:max_tokens=8:chunked=false")
    assert stalled.returncode == 1
    words = " ".join(stalled.stdout.split())
    assert "STALLED: nothing runs, but request 0 at the head of the queue (prompt 20 tokens" in words
    assert "prompt does not fit the step budget" in words


def test_the_offered_rate_is_that_of_the_arrivals(trace: Path) -> None:
    """50 requests, one each 0.1 s: 10 per second, however long the backlog takes to drain."""
    slow = tokenwork("replay", str(trace), "--cost", '{"kind": "linear", "a_s": 1, "b_s_per_token": 0}')
    assert "offered 10.0 req/s" in slow.stdout


def test_reservations_for_the_longest_answers_are_pointed_out(trace: Path) -> None:
    result = tokenwork("replay", str(trace), "--engine", "static-batch")
    assert "memory is reserved for the longest answers that the model allows: see --max-tokens-from" in " ".join(
        result.stdout.split()
    )


def test_version() -> None:
    assert tokenwork("--version").stdout.startswith("tokenwork ")


def test_a_reader_that_has_had_enough_is_no_failure(trace: Path) -> None:
    """`tokenwork replay ... | head -1` under `set -o pipefail`."""
    program = " ".join(f"'{part}'" for part in [*PROGRAM, "replay", str(trace)])
    result = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {program} | true"], capture_output=True, text=True, check=False
    )
    assert (result.returncode, "Traceback" in result.stderr) == (0, False), result.stderr
