"""A result of `vllm bench serve`: two scales, intervals as wide as what is not known, and it says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibrate.bench_result import is_bench_result, profile_from_bench
from calibrate.evidence import EvidenceError
from calibrate.import_command import import_measurements
from calibrate.priors import prior_weights
from costmodel.config import RooflineConfig
from costmodel.profile import load_profile
from costmodel.shape import StepShape
from costmodel.token_weights import TokenWeightsModel

ROOFLINE = RooflineConfig(device="h100-sxm", model="llama-3.1-8b")
PRIOR = TokenWeightsModel([weight.term() for weight in prior_weights(ROOFLINE)])
PROMPT, OUTPUT, DECODES = 1000, 201, 32
SLOWER = 1.3


def result(**changes: Any) -> dict[str, Any]:
    """A server 1.3 times as slow as the roofline everywhere, with 32 requests decoding on average."""
    batch = StepShape((), DECODES, DECODES * (PROMPT + OUTPUT // 2))
    both = StepShape(((PROMPT, 0),), batch.decode_requests, batch.decode_context_tokens)
    gap_s = SLOWER * PRIOR.seconds(batch)
    first_s = 1.5 * gap_s + SLOWER * (PRIOR.seconds(both) - PRIOR.seconds(batch))
    completed = 500
    return {
        "completed": completed,
        "duration": completed * (OUTPUT - 1) * gap_s / DECODES,
        "total_input_tokens": completed * PROMPT,
        "total_output_tokens": completed * OUTPUT,
        "median_ttft_ms": first_s * 1e3,
        "median_tpot_ms": gap_s * 1e3,
        "median_itl_ms": gap_s * 1e3,
    } | changes


def written(path: Path, raw: object) -> Path:
    path.write_text(json.dumps(raw), encoding="utf-8")
    return path


def test_two_scales_come_out(tmp_path: Path) -> None:
    path = written(tmp_path / "bench.json", result())
    assert is_bench_result(path)
    profile = profile_from_bench(path, "bench", ROOFLINE)
    model = TokenWeightsModel(profile.terms())
    for shape in (StepShape((), 32, 32 * 1100), StepShape(((1000, 0),), 32, 32 * 1100)):
        assert model.seconds(shape) == pytest.approx(SLOWER * PRIOR.seconds(shape), rel=0.01)
    assert profile.valid_range.max_decode_requests == DECODES


def test_it_says_how_little_it_knows(tmp_path: Path) -> None:
    """Each weight could be nothing or all of the step; none is called fitted."""
    profile = profile_from_bench(written(tmp_path / "bench.json", result()), "bench", ROOFLINE)
    assert {weight.origin for weight in profile.weights} == {"prior"}
    host = next(weight for weight in profile.weights if weight.quantity == "steps")
    assert host.low_s_per_unit == 0
    assert host.high_s_per_unit == pytest.approx(result()["median_itl_ms"] / 1e3, rel=1e-4)
    assert "two numbers of one benchmark" in profile.warnings[0]
    assert "1.30 times the roofline's, prompt weights 1.30 times" in profile.warnings[1]


def test_first_tokens_that_waited_say_nothing_about_prompts(tmp_path: Path) -> None:
    profile = profile_from_bench(written(tmp_path / "b.json", result(median_ttft_ms=9000.0)), "bench", ROOFLINE)
    assert "waited in a queue" in profile.warnings[-1]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"median_tpot_ms": None}, "b.json: median_tpot_ms must be a number > 0, got None"),
        ({"completed": 0}, "b.json: completed must be a number > 0, got 0"),
        ({"median_ttft_ms": float("nan")}, "b.json: median_ttft_ms must be a number > 0, got nan"),
    ],
)
def test_bad_results(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(EvidenceError, match=complaint):
        profile_from_bench(written(tmp_path / "b.json", result(**changes)), "bench", ROOFLINE)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = written(tmp_path / "bench.json", result()), tmp_path / "p.json"
    import_measurements([path], out, device="h100-sxm", model="llama-3.1-8b")
    text = capsys.readouterr().out
    assert text.startswith("read as bench result\n")
    assert "agree with it too" in text
    assert load_profile(str(out)).pool is not None
