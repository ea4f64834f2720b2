"""Fitting timed steps: the weights that made them come back, and what is doubtful is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibrate.evidence import EvidenceError, MeasuredStep, noise_floor_ratio
from calibrate.fit_steps import fit_steps
from calibrate.profile_from_steps import profile_from_steps
from calibrate.timed_samples import read_timed_samples
from costmodel.shape import StepShape
from costmodel.token_weights import TokenWeightsModel
from tests.calibrate.made_up import samples_file, tasks, true_s


def test_exact_times_are_predicted_exactly_also_held_out(tmp_path: Path) -> None:
    """Features outside the made-up machine's get next to nothing; steps never seen are right to a fraction."""
    evidence = read_timed_samples([samples_file(tmp_path / "s.jsonl")])
    fitted = fit_steps(evidence)
    profile = profile_from_steps("made-up", evidence, fitted)
    model = TokenWeightsModel(profile.terms())
    fresh = [task.shape for task in tasks(100, seed=99)]
    assert [model.seconds(shape) for shape in fresh] == pytest.approx([true_s(shape) for shape in fresh], rel=0.01)
    assert profile.fit_errors[-1].mape_ratio < 0.002
    assert profile.held_out_errors[-1].mape_ratio < 0.01
    assert profile.noise_floor_ratio == 0.0
    by_quantity = {weight.quantity: weight.s_per_unit for weight in profile.weights if not weight.past}
    assert by_quantity["decode_kv_tokens"] == pytest.approx(0.5e-6, rel=0.02)
    assert by_quantity["mixed_decode_kv_tokens"] == pytest.approx(0.25e-6, rel=0.05)


def test_with_noise_the_error_of_single_samples_is_the_noise(tmp_path: Path) -> None:
    evidence = read_timed_samples([samples_file(tmp_path / "s.jsonl", noise=0.05)])
    fitted = fit_steps(evidence)
    assert fitted.noise_ratio == pytest.approx(0.05 * (2 / np.pi) ** 0.5, rel=0.1)  # mean deviation of a normal one
    assert np.abs(fitted.held_out / fitted.seconds - 1).mean() < 1.5 * fitted.noise_ratio
    assert abs((fitted.held_out.sum() / fitted.seconds.sum()) - 1) < 0.01


def test_a_profile_says_what_it_saw(tmp_path: Path) -> None:
    evidence = read_timed_samples([samples_file(tmp_path / "s.jsonl")])
    profile = profile_from_steps("made-up", evidence, fit_steps(evidence))
    (file,) = profile.provenance.files
    assert (file.path, file.num_steps) == ("s.jsonl", len(evidence.steps))
    assert (profile.provenance.evidence, profile.dtype, profile.model) == ("samples", "float32", "tiny")
    assert profile.shapes() == evidence.model
    assert profile.valid_range.verification
    assert profile.reference.decode_requests <= profile.valid_range.max_decode_requests
    regions = [row.region for row in profile.held_out_errors]
    assert regions[-1] == "all"
    assert regions[-2].startswith("largest decade, > ")


def test_too_few_steps(tmp_path: Path) -> None:
    evidence = read_timed_samples([samples_file(tmp_path / "s.jsonl", count=29)])
    with pytest.raises(EvidenceError, match=r"s.jsonl: 29 measured steps, a fit needs >= 30"):
        fit_steps(evidence)


def test_files_of_different_machines_are_not_mixed(tmp_path: Path) -> None:
    first = samples_file(tmp_path / "a.jsonl", count=40)
    device = {"name": "other", "kind": "cpu", "memory_bytes": 1 << 34, "threads": 1}
    second = samples_file(tmp_path / "b.jsonl", count=40, device=device)
    with pytest.raises(EvidenceError, match=r"b.jsonl:1: does not go together with a.jsonl: device.name is 'made"):
        read_timed_samples([first, second])


def test_warnings(tmp_path: Path) -> None:
    """Few steps for many weights, one step that decides a weight, noise, and steps never repeated."""
    few = read_timed_samples([samples_file(tmp_path / "few.jsonl", count=30, noise=0.1)])
    assert fit_steps(few).warnings[0].startswith("30 steps for ")
    noisy = read_timed_samples([samples_file(tmp_path / "s.jsonl", count=31, noise=0.4)])
    text = "\n".join(fit_steps(noisy).warnings)
    assert "leverage > 0.5" in text
    assert "noise floor" in text
    assert "tokenwork calibrate run" in text
    once = replace(noisy, series=tuple(replace(s, steps=tuple(map(_once, s.steps))) for s in noisy.series))
    assert "no step was repeated" in "\n".join(fit_steps(once).warnings)


def test_collinear_features_are_warned_of(tmp_path: Path) -> None:
    """Contexts within 3 % of each other: what a request costs and what its KV costs hardly differ in any step."""
    evidence = read_timed_samples([samples_file(tmp_path / "s.jsonl", count=40)])
    batches = [(n, n * (1000 + 30 * (n % 3))) for n in range(4, 64)]
    steps = tuple(MeasuredStep(StepShape((), n, kv - n), (1e-3 + 1e-3 * n + 1e-6 * kv,)) for n, kv in batches)
    fitted = fit_steps(replace(evidence, series=(replace(evidence.series[0], steps=steps),)))
    assert fitted.predicted == pytest.approx(fitted.seconds, rel=1e-3)
    assert fitted.condition > 30
    assert "features go up and down together" in " ".join(fitted.warnings)


def test_steps_of_one_region_are_fitted_and_nothing_is_held_out(tmp_path: Path) -> None:
    evidence = read_timed_samples([samples_file(tmp_path / "s.jsonl", count=40)])
    steps = tuple(MeasuredStep(StepShape((), n, 100 * n * n), (1e-3 + 1e-3 * n,)) for n in range(20, 60))
    evidence = replace(evidence, series=(replace(evidence.series[0], steps=steps),))
    fitted = fit_steps(evidence)
    assert "all steps are of one region" in fitted.warnings[0]
    assert profile_from_steps("one", evidence, fitted).held_out_errors == ()


def test_the_noise_floor_pools_repeats_and_keeps_skew_apart() -> None:
    """Repeats of one batch: 10 % off its median each; another order of contexts with the same sum is another step."""
    shape = StepShape((), 2, 30)
    steps = [
        MeasuredStep(shape, (0.9, 1.0, 1 / 0.9), (15, 15)),
        MeasuredStep(shape, (5.0, 5.0, 5.0), (1, 29)),
    ]
    deviation = 1.5**0.5 * (1 / 0.9 - 1 + 0.1) / 3
    assert noise_floor_ratio(steps[:1], 1) == pytest.approx(deviation)
    assert noise_floor_ratio(steps, 1) == pytest.approx(deviation / 2)
    assert noise_floor_ratio([MeasuredStep(shape, (1.0, 2.0))], 1) is None


def test_drift_is_in_the_floor_once_enough_steps_were_measured_anew() -> None:
    """Five steps, 5 % slower or faster the second time: back to back they look exact."""
    shapes = [StepShape((), n, 10 * n) for n in range(1, 6)]
    drifting = [MeasuredStep(shape, (1.0, 1.0, 1.1, 1.1), rounds=2) for shape in shapes]
    expected = 2**0.5 * (0.05 + 1 - 1.05 / 1.1) / 2
    assert noise_floor_ratio(drifting, 1) == pytest.approx(expected)
    assert noise_floor_ratio([*drifting, MeasuredStep(StepShape((), 9, 90), (1.0, 1.0, 1.0))], 1) == pytest.approx(
        expected
    )


def _once(step: MeasuredStep) -> MeasuredStep:
    return replace(step, seconds=step.seconds[:1])
