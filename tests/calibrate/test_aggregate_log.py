"""Logs with sums per step: what is fitted, what stays at a prior, and which column is a step's time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibrate.aggregate_log import NEVER_SEEN, aggregate_features, is_aggregate_log, read_aggregate_log
from calibrate.evidence import Evidence, EvidenceError
from calibrate.fit_steps import fit_steps
from calibrate.import_command import import_measurements
from calibrate.priors import prior_weights
from calibrate.profile_from_steps import profile_from_steps
from costmodel.config import RooflineConfig, build_cost_model
from costmodel.profile import load_profile
from costmodel.shape import StepShape
from costmodel.token_weights import TokenWeightsModel
from sim.commands.errors import Failure

ROOFLINE = RooflineConfig(device="h100-sxm", model="llama-3.1-8b", graphs=None)
BLIS = "data/measured/blis_vllm_steps/enriched_steps.csv.gz"


def made_up(rows: int = 120, chunk: int = 0) -> pd.DataFrame:
    """8 ms + 20 us a decode + 100 ns per KV token in use; every third step has a chunk of 1 ms + 5 us a token."""
    index = np.arange(rows)
    decodes, blocks = 10 + index % 40, 1000 + 37 * (index % 50)
    chunks = (index % 3 == 0).astype(int) * (chunk > 0)
    kv_tokens = blocks * 16 * decodes // (chunks + decodes)
    took_ns = 8e6 + 20e3 * decodes + 100 * kv_tokens + chunks * (1e6 + 5e3 * chunk)
    return pd.DataFrame(
        {
            "step.id": index,
            "step.ts_start_ns": np.concatenate([[0], np.cumsum(took_ns.astype(np.int64))[:-1]]),
            "step.duration_us": 100,
            "batch.num_prefill_reqs": chunks,
            "batch.num_decode_reqs": decodes,
            "batch.prefill_tokens": chunks * chunk,
            "batch.decode_tokens": decodes,
            "kv.blocks_total_gpu": 10_000,
            "kv.blocks_free_gpu": 10_000 - blocks,
            "cycle_time_us": np.where(index % 4, np.nan, took_ns / 1e3),
        }
    )


def written(path: Path, frame: pd.DataFrame) -> Path:
    frame.to_csv(path, index=False)
    return path


def read(path: Path, experiment: str | None = None) -> Evidence:
    return read_aggregate_log(path, experiment=experiment, device="h100-sxm", model="llama-3.1-8b")


def test_time_is_from_start_to_start(tmp_path: Path) -> None:
    """Never the host's duration; the last step has no next one."""
    path = written(tmp_path / "steps.csv", made_up())
    assert is_aggregate_log(path)
    evidence = read(path)
    assert len(evidence.steps) == 119
    assert evidence.steps[1].median_s == pytest.approx(8e-3 + 11 * 20e-6 + 1037 * 16 * 1e-7, rel=1e-6)
    assert "119 of 120 steps have a time: from their start to the start of the next step" in evidence.notes[0]


def test_without_consecutive_steps_the_cycle_time_is_all_there_is(tmp_path: Path) -> None:
    sampled = made_up().assign(**{"step.id": lambda frame: frame["step.id"] * 10})
    evidence = read(written(tmp_path / "steps.csv", sampled))
    assert len(evidence.steps) == 30
    assert "30 of 120 steps have a time: cycle_time_us" in evidence.notes[0]


def test_few_large_prompts_leave_gemms_at_the_prior(tmp_path: Path) -> None:
    evidence = read(written(tmp_path / "steps.csv", made_up()))
    priors = prior_weights(ROOFLINE)
    candidates, fixed = aggregate_features(evidence, priors)
    assert {prior.quantity for prior in fixed} == {*NEVER_SEEN, "gemm_rows", "logit_rows"}
    profile = profile_from_steps("log", evidence, fit_steps(evidence, candidates, fixed), fixed)
    assert profile.fit_errors[-1].mape_ratio < 0.001
    assert {w.quantity for w in profile.weights if w.origin == "prior"} >= {"prefill_pairs", "verify_kv_tokens"}
    assert "left at a prior, the roofline of device and model: gemm_rows" in " ".join(profile.assumed)
    model = TokenWeightsModel(profile.terms())
    assert model.seconds(StepShape(((8192, 0),))) > 0.1  # a prompt that the log never had is not free


def test_many_large_prompts_are_fitted(tmp_path: Path) -> None:
    evidence = read(written(tmp_path / "steps.csv", made_up(chunk=500)))
    candidates, fixed = aggregate_features(evidence, prior_weights(ROOFLINE))
    assert {prior.quantity for prior in fixed} == set(NEVER_SEEN)
    fitted = fit_steps(evidence, candidates, fixed)
    assert np.abs(fitted.predicted / fitted.seconds - 1).mean() < 0.005


def test_the_prior_is_the_roofline() -> None:
    """At decodes and at large prompts; between them the hinge is sharper than the maximum per GEMM."""
    prior = TokenWeightsModel([weight.term() for weight in prior_weights(ROOFLINE)])
    roofline = build_cost_model(ROOFLINE)
    for shape in (StepShape((), 1, 100), StepShape((), 64, 64 * 2048), StepShape(((8192, 0),))):
        assert prior.seconds(shape) == pytest.approx(roofline.seconds(shape), rel=0.06)


def test_two_experiments_are_not_mixed(tmp_path: Path) -> None:
    both = pd.concat([made_up().assign(experiment_id=name) for name in ("a", "b")])
    path = written(tmp_path / "steps.csv", both)
    with pytest.raises(EvidenceError, match=r"2 experiments, which are not fitted together: --experiment one of a, b"):
        read(path)
    with pytest.raises(EvidenceError, match=r"no --experiment 'c': it has a, b"):
        read(path, "c")
    assert len(read(path, "b").steps) == 119


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"drop": "batch.prefill_tokens"}, r"steps.csv:1: no column batch.prefill_tokens: it has step.id"),
        ({"assign": ("step.ts_start_ns", np.nan)}, r"steps.csv: step 0: time nan s must be finite and > 0"),
        ({"assign": ("step.ts_start_ns", 0)}, r"steps.csv: step 0: time 0.0 s must be finite and > 0"),
    ],
)
def test_bad_logs(tmp_path: Path, change: dict[str, object], complaint: str) -> None:
    frame = made_up()
    if "drop" in change:
        frame = frame.drop(columns=[change["drop"]])
    else:
        column, value = change["assign"]
        frame[column] = value
    with pytest.raises(EvidenceError, match=complaint):
        read(written(tmp_path / "steps.csv", frame))


def test_the_command_needs_device_and_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = written(tmp_path / "steps.csv", made_up()), tmp_path / "p.json"
    with pytest.raises(Failure, match="--device and --model are needed"):
        import_measurements([path], out)
    import_measurements([path], out, device="h100-sxm", model="llama-3.1-8b")
    assert capsys.readouterr().out.startswith("read as aggregated step log\nprofile h100-sxm-llama-3.1-8b: ")
    assert load_profile(str(out)).provenance.evidence == "aggregated step log"


@pytest.mark.parametrize(
    ("experiment", "model", "num_steps"),
    [
        ("20260217-202857-llama-2-70b-tp4-general", "llama-2-70b", 593),
        ("20260218-150304-codellama-34b-tp2-general", "codellama-34b", 716),
    ],
)
def test_public_vllm_steps(shared_dir: Path, experiment: str, model: str, num_steps: int) -> None:
    """H100 steps of two models: held-out regions within 10 %, though contexts of prompts are unknown."""
    evidence = read_aggregate_log(shared_dir / BLIS, experiment=experiment, device="h100-sxm", model=model)
    priors = prior_weights(RooflineConfig(device="h100-sxm", model=model, tensor_parallel=evidence.tensor_parallel))
    candidates, fixed = aggregate_features(evidence, priors)
    profile = profile_from_steps(model, evidence, fit_steps(evidence, candidates, fixed), fixed)
    assert profile.provenance.files[0].num_steps == num_steps
    total = profile.held_out_errors[-1]
    assert total.mape_ratio < 0.10
    assert profile.fit_errors[-1].mape_ratio < 0.07
