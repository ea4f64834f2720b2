"""Step logs of an engine: read, judged after a speed factor, and refused where they are not what they say."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from calibrate.engine_runs import read_engine_runs
from calibrate.evidence import EvidenceError
from calibrate.fit_steps import fit_steps
from calibrate.like_steps import judge_run, like_means, like_text, total_ratio
from calibrate.profile_from_steps import profile_from_steps
from costmodel.token_weights import Term, TokenWeightsModel
from tests.calibrate.made_up import MODEL, TRUTH, step_log

TRUE_MODEL = TokenWeightsModel([Term(feature, s, "part") for feature, s in TRUTH.items()])


def test_a_log_becomes_steps(tmp_path: Path) -> None:
    """One token behind the whole prompt is a decode, a prompt is a chunk; the model comes from its config."""
    evidence = read_engine_runs([step_log(tmp_path, "a")], None)
    first, second = evidence.steps[:2]
    assert (first.shape.prefill, first.shape.decode_requests) == (((100, 0),), 0)
    assert (second.shape.prefill, second.decode_contexts) == ((), (100,))
    millions = round(MODEL.parameters / 1e6)
    assert evidence.model == MODEL.model_copy(update={"name": f"llama-{millions}m"})
    assert (evidence.dtype, evidence.device) == ("float32", "made-up, 1 threads")
    assert evidence.series[0].file.num_steps == len(evidence.steps)


def test_a_directory_stands_for_its_logs(tmp_path: Path) -> None:
    step_log(tmp_path, "b")
    step_log(tmp_path, "a")
    evidence = read_engine_runs([tmp_path], "mine")
    assert [series.name for series in evidence.series] == ["a.steps.jsonl.gz", "b.steps.jsonl.gz"]
    assert evidence.model.name == "mine"


def test_the_fit_finds_the_machine_and_derives_verification(tmp_path: Path) -> None:
    evidence = read_engine_runs([step_log(tmp_path, "a")], None)
    profile = profile_from_steps("log", evidence, fit_steps(evidence))
    model = TokenWeightsModel(profile.terms())
    predicted = [model.seconds(step.shape) for step in evidence.steps]
    assert predicted == pytest.approx([step.median_s for step in evidence.steps], rel=0.02)
    assert {w.origin for w in profile.weights if w.quantity.startswith("verify")} == {"derived"}
    assert not profile.valid_range.verification
    assert profile.pool is None


def test_one_factor_takes_a_slower_run_out(tmp_path: Path) -> None:
    """A machine 20 % slower throughout is right again after its first fifth."""
    series = read_engine_runs([step_log(tmp_path, "slow", speed=1.2)], None).series[0]
    run = judge_run(TRUE_MODEL, series)
    assert run.speed_factor == pytest.approx(1.2)
    assert len(run.steps) == len(series.steps) - len(series.steps) // 5
    assert run.total_ratio == pytest.approx(0, abs=1e-9)
    assert "1.200" in like_text([run])


def test_means_of_like_steps_are_less_noisy_than_steps(tmp_path: Path) -> None:
    runs = [
        judge_run(TRUE_MODEL, read_engine_runs([step_log(tmp_path, f"r{i}", noise=0.15)], None).series[0])
        for i in range(2)
    ]
    means = like_means(runs)
    assert means is not None
    assert means.mape_ratio < 0.05 < 0.10 < runs[0].step_mape_ratio
    assert 0.5 < means.covered_ratio <= 1
    assert abs(total_ratio(runs)) < 0.03
    assert like_means([]) is None


def test_clocks_are_not_mixed_in_a_fit(tmp_path: Path) -> None:
    paths = [step_log(tmp_path, "a", clock="cpu"), step_log(tmp_path, "b", clock="wall")]
    evidence = read_engine_runs(paths, None)
    with pytest.raises(EvidenceError, match=r"b.steps.jsonl.gz: clock is 'wall', but 'cpu' in a.steps.jsonl.gz"):
        fit_steps(evidence)


def _rewrite(path: Path, old: str, new: str) -> None:
    text = gzip.decompress(path.read_bytes()).decode()
    assert old in text
    path.write_bytes(gzip.compress(text.replace(old, new, 1).encode()))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"engine-run/1"', '"engine-run/2"', r"a.steps.jsonl.gz:1: 'engine-run/2' is newer than this program knows"),
        ('"engine-run/1"', '"engine-log/1"', r"a.steps.jsonl.gz:1: schema is 'engine-log/1', must be 'engine-run/1'"),
        ('"dur_s"', '"duration"', r"a.steps.jsonl.gz:2: dur_s must be a float, got None"),
        ('"dur_s": 0', '"dur_s": -0', r"a.steps.jsonl.gz:2: dur_s=-0.* must be finite and > 0"),
        ('"dur_s": 0', '"dur_s": NaN, "x": 0', r"a.steps.jsonl.gz:2: dur_s=nan must be finite and > 0"),
        ('["r0", 100, 0]', '["r9", 100, 0]', r"a.steps.jsonl.gz:2: request 'r9' is not in the requests file"),
        ('["r0", 100, 0]', '["r0", 100]', r"a.steps.jsonl.gz:2: batch must hold \[id, tokens, computed tokens\]"),
        ('"hidden_size"', '"width"', r"a.steps.jsonl.gz:1: meta.env.model has no whole number hidden_size"),
        ('{"i": 0', '{"i" 0', r"a.steps.jsonl.gz:2: not JSON"),
    ],
)
def test_bad_logs(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    path = step_log(tmp_path, "a")
    _rewrite(path, old, new)
    with pytest.raises(EvidenceError, match=complaint):
        read_engine_runs([path], None)


def test_a_log_without_its_requests(tmp_path: Path) -> None:
    path = step_log(tmp_path, "a")
    (tmp_path / "a.requests.jsonl.gz").unlink()
    with pytest.raises(EvidenceError, match=r"a.steps.jsonl.gz: no a.requests.jsonl.gz beside it"):
        read_engine_runs([path], None)


def test_contexts_are_summed_exactly(tmp_path: Path) -> None:
    steps = read_engine_runs([step_log(tmp_path, "a")], None).steps
    assert all(sum(step.decode_contexts) == step.shape.decode_context_tokens for step in steps)
    assert np.max([step.shape.decode_requests for step in steps]) > 3
