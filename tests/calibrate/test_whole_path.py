"""From nothing to a replay as a user would do it: run, fit, check, weights, replay. About a minute of real work.

No time is judged here: other tests share the cores. What is measured is printed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from costmodel.profile import load_profile
from sim.replay import hardware_of
from sim.scenario import ProfileConfig

PROGRAM = [sys.executable, "-c", "from sim.commands.main import main; main()"]
MINUTES = "0.8"
PATTERN = (
    r"mixed steps \(with verification\): single samples wrong by [\d.]+%, noise floor [\d.]+% .*: ([\d.]+) times it"
)
SCENARIO = {
    "workload": {
        "kind": "synthetic",
        "num_requests": 200,
        "arrivals": {"kind": "poisson", "rate_per_s": 2},
        "prompt_tokens": {"kind": "lognormal", "mean_tokens": 200, "sigma": 0.8, "max_tokens": 800},
        "output_tokens": {"kind": "lognormal", "mean_tokens": 60, "sigma": 0.6, "max_tokens": 200},
    },
}


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 1024,
}
"""Half of small-llama in every direction: on a busy machine, too, a minute holds enough steps."""


def tokenwork(*arguments: str, cwd: Path) -> str:
    done = subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_run_fit_check_weights_and_replay(tmp_path: Path) -> None:
    (tmp_path / "half-llama.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    flags = ("--device", "cpu", "--model", "half-llama.json", "--clock", "cpu", "--minutes", MINUTES)
    ran = tokenwork("calibrate", "run", *flags, "--out", "cpu", cwd=tmp_path)
    assert "next: tokenwork calibrate fit cpu/samples.jsonl --out" in ran
    fitted = tokenwork("calibrate", "fit", "cpu", "--out", "cpu.json", cwd=tmp_path)
    assert "next: tokenwork calibrate check cpu.json cpu/samples.jsonl" in fitted
    checked = tokenwork("calibrate", "check", "cpu.json", "cpu", "--out", "check.png", cwd=tmp_path)
    inside, held_out = checked.split("held out: each region predicted by a fit to the others")
    for text, what in ((inside, "in the fit"), (held_out, "held out")):
        (ratio,) = re.findall(PATTERN, text)
        print(f"mixed steps, {what}: error of single samples / noise floor = {ratio}")
        assert float(ratio) > 0
    print(ran, checked, sep="\n")
    assert (tmp_path / "check.png").stat().st_size > 10_000
    weights = tokenwork("calibrate", "weights", "cpu.json", "cpu", "--replay", cwd=tmp_path)
    assert weights.count("calibrated ") == 2
    assert_replays(tmp_path)


def assert_replays(directory: Path) -> None:
    (directory / "small.json").write_text(json.dumps(SCENARIO), encoding="utf-8")
    for arguments in (["chat-1k"], ["--scenario", "small.json"]):
        replayed = tokenwork("replay", *arguments, "--profile", "cpu.json", cwd=directory)
        assert "profile cpu " in replayed
    profile = load_profile(str(directory / "cpu.json"))
    hardware = hardware_of(ProfileConfig(name=str(directory / "cpu.json")), profile)
    # K and V of 2 layers, 2 KV heads, 32 values of 4 bytes each
    assert hardware.kv_bytes_per_token == 2 * 2 * 2 * 32 * 4
    assert hardware.host_link_bytes_per_s == profile.host_link_bytes_per_s
