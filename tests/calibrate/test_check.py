"""`calibrate fit`, `check` and `weights` as commands: errors beside noise, held out, drawn, and refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from calibrate.check_command import check
from calibrate.evidence import EvidenceError
from calibrate.fit_command import fit_samples
from calibrate.operators import operators_text
from calibrate.records import Measurement, TaskSpec
from calibrate.regions import held_out_mask, region, region_order
from calibrate.sources import detect, detect_all, found, read_steps
from calibrate.timed_samples import read_timed_samples
from calibrate.weights_command import weights
from calibrate.work_report import held_out_works
from costmodel.profile import load_profile
from costmodel.shape import StepShape
from sim.commands.errors import Failure
from tests.calibrate.made_up import samples_file, step_log

SHIPPED = "h100-llama-3.1-8b-bf16"


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A samples file with 3 % noise, and the profile of it."""
    directory = tmp_path_factory.mktemp("fitted")
    samples, profile = samples_file(directory / "s.jsonl", noise=0.03), directory / "p.json"
    fit_samples([samples], profile, name="made-up")
    return samples, profile


def test_fit_prints_weights_errors_and_range(fitted: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    samples, profile = fitted
    fit_samples([samples], profile, name="made-up", force=True)
    text = capsys.readouterr().out
    for part in (
        "us per KV token read by decodes (decode_attention, fitted)",
        "held-out regions",
        "noise floor",
        "valid",
    ):
        assert part in text
    result, _, following = text.partition("\nnext: ")
    assert str(samples.parent) not in result + profile.read_text(encoding="utf-8")
    assert following.startswith(f"tokenwork calibrate check {profile} {samples}\n")
    with pytest.raises(Failure, match="exists already"):
        fit_samples([samples], profile)


def test_check_says_seen_and_repeats_the_fit_held_out(
    fitted: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    samples, profile = fitted
    check(str(profile), [samples])
    text = capsys.readouterr().out
    assert "the fit has seen these steps" in text
    assert "where the longest is 2 times the mean or more, MAPE: these " in text
    first = next(i for i, line in enumerate(text.splitlines()) if line.startswith("region "))
    names = [line[:34].strip() for line in text.splitlines()[first + 1 :]]
    regions = names[: names.index("all decode")]
    assert regions == sorted(regions, key=region_order)
    assert "held out: each region predicted by a fit to the others" in text
    verdicts = [line for line in text.splitlines() if line.startswith("mixed steps (with verification)")]
    assert len(verdicts) == 2
    assert all("within 1.5" in line for line in verdicts)


def test_check_of_unseen_samples_of_another_run(fitted: tuple[Path, Path], tmp_path: Path, capsys) -> None:
    fresh = samples_file(tmp_path / "fresh.jsonl", noise=0.03, seed=8)
    check(str(fitted[1]), [fresh])
    text = capsys.readouterr().out
    assert "the fit has not seen these steps" in text
    assert "held out" not in text


def test_a_run_that_went_on_is_not_called_unseen(fitted: tuple[Path, Path], tmp_path: Path, capsys) -> None:
    longer = samples_file(tmp_path / "s.jsonl", count=310, noise=0.03)
    check(str(fitted[1]), [longer])
    assert "not seen this file, but one of the same name" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["largest-decade", "mixed with verify", "verify", "skewed"])
def test_holding_out_by_structure(fitted: tuple[Path, Path], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    check(str(fitted[1]), [fitted[0]], holdout=what)
    assert "predicted by a fit to the other" in capsys.readouterr().out


def test_unknown_holdout(fitted: tuple[Path, Path]) -> None:
    with pytest.raises(Failure, match=r"unknown --holdout 'mixt': known are largest-decade, .*did you mean 'mixed'\?"):
        check(str(fitted[1]), [fitted[0]], holdout="mixt")


def test_the_figure(fitted: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "figure.svg"
    check(str(fitted[1]), [fitted[0]], out=out)
    drawn = out.read_text(encoding="utf-8")
    assert "mixed with verify" in drawn
    with pytest.raises(Failure, match="exists already"):
        check(str(fitted[1]), [fitted[0]], out=out)


def test_a_profile_for_another_model_or_dtype_is_refused(fitted: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"is for another model: layers is 32 in llama-3.1-8b, but 2 in tiny of s.jsonl"):
        check(SHIPPED, [fitted[0]])
    half = samples_file(tmp_path / "half.jsonl", count=40, dtype="bfloat16")
    with pytest.raises(Failure, match=r"made-up is for dtype float32, half.jsonl is bfloat16"):
        check(str(fitted[1]), [half])


def test_a_step_log_is_judged_by_means_too(tmp_path: Path, fitted, capsys: pytest.CaptureFixture[str]) -> None:
    check(str(fitted[1]), [step_log(tmp_path, "a", noise=0.05)])
    text = capsys.readouterr().out
    assert "after one speed factor per run" in text
    assert "another device: made-up, 1 threads in the profile" not in text


def test_weights_says_what_is_left_at_constant_work(
    fitted: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Calibrated weights leave much less of step time open than equal ones."""
    weights(str(fitted[1]), [fitted[0]])
    text = capsys.readouterr().out
    assert "1 token-work = one decode token at" in text
    left = {
        line.split()[0]: float(line.split()[1].rstrip("%"))
        for line in text.splitlines()
        if line.startswith(("equal", "calibr"))
    }
    assert left["calibrated"] < 0.4 * left["equal"]


def test_a_calibrated_budget_keeps_steps_within_the_target(capsys: pytest.CaptureFixture[str]) -> None:
    """H100, everybody there at once: P95 step time is at the target; with equal weights it is twice that."""
    weights(SHIPPED, replay=True)
    rows = {
        line.split()[0]: line.split()
        for line in capsys.readouterr().out.splitlines()
        if line.startswith(("equal", "calibr"))
    }
    assert float(rows["calibrated"][4]) <= 1.02
    assert float(rows["equal"][4]) > 1.5


def test_held_out_work_is_positive(fitted: tuple[Path, Path]) -> None:
    evidence = read_timed_samples([fitted[0]])
    works = held_out_works(evidence.steps, load_profile(str(fitted[1])).reference)
    assert (works > 0).all()


def test_what_a_file_is(fitted: tuple[Path, Path], tmp_path: Path) -> None:
    assert detect(fitted[0]) == "samples"
    assert detect(step_log(tmp_path, "a")) == "engine step log"
    assert detect(tmp_path) == "engine step log"
    with pytest.raises(
        EvidenceError, match=r"different kinds: s.jsonl is samples, a.steps.jsonl.gz is engine step log"
    ):
        detect_all([fitted[0], tmp_path / "a.steps.jsonl.gz"])
    other = tmp_path / "other.txt"
    other.write_text("hello\n", encoding="utf-8")
    with pytest.raises(EvidenceError, match=r"other.txt: not known what this is"):
        detect(other)
    with pytest.raises(EvidenceError, match=r"is aggregated step log: single steps can be judged only by"):
        read_steps([_csv(tmp_path)])


def _csv(directory: Path) -> Path:
    path = directory / "steps.csv"
    path.write_text("batch.num_prefill_reqs\n", encoding="utf-8")
    return path


def test_a_runs_directory_stands_for_its_samples(tmp_path: Path) -> None:
    samples = samples_file(tmp_path / "samples.jsonl", count=40)
    assert found([tmp_path, samples]) == [samples, samples]


def test_fit_is_for_samples(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"a.steps.jsonl.gz is engine step log: that is for `calibrate import`"):
        fit_samples([step_log(tmp_path, "a")], tmp_path / "p.json")


def test_regions_and_masks(fitted: tuple[Path, Path]) -> None:
    assert region(StepShape(((100, 0),), 3, 30, ((2, 5),))) == "mixed with verify, 64-511 tokens"
    assert region(StepShape((), 300, 30)) == "decode, >= 256 requests"
    steps = read_timed_samples([fitted[0]]).steps
    name, mask = held_out_mask("largest-decade", steps)
    most = max(step.shape.tokens for step in steps)
    assert name == f"largest decade, > {most // 10} tokens"
    assert all((step.shape.tokens > most // 10) == out for step, out in zip(steps, mask, strict=True))


def test_gemms_are_held_out_by_shape() -> None:
    """A machine of one bandwidth and one speed: an unseen (n, k) is right to a few percent."""
    shapes = {"qkv": (192, 128), "o": (128, 128), "gate_up": (512, 128), "down": (128, 256)}
    measurements = [
        Measurement(
            TaskSpec("gemm", gemm=name, rows=rows, n=n, k=k), (1e-6 + n * k * (2e-11 + 1e-12 * max(0, rows - 16)),)
        )
        for name, (n, k) in shapes.items()
        for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    ]
    text = operators_text(measurements)
    assert "gate_up, n 512, k 128" in text
    assert "largest decade, > 51 rows" in text
    total = text.splitlines()[-1].split()
    assert float(total[2].rstrip("%")) < 5
    assert operators_text(measurements[:10]) == ""


def test_as_programs(fitted: tuple[Path, Path], tmp_path: Path) -> None:
    """Exit status: 2 for what is not there, 1 for bad data; one line each; and no torch is needed."""
    bad = tmp_path / "bad.jsonl"
    bad.write_text(fitted[0].read_text(encoding="utf-8").replace("tokenwork-samples/1", "tokenwork-samples/2", 1))
    for arguments, status, text in (
        (["fit", "nowhere.jsonl", "--out", "p.json"], 2, "nowhere.jsonl: No such file or directory"),
        (["fit", str(bad), "--out", "p.json"], 1, "'tokenwork-samples/2' is newer than this program knows"),
        (["check", "nobody", str(fitted[0])], 2, "unknown profile 'nobody'"),
        (["check", str(fitted[1]), str(bad)], 1, "is newer than this program knows"),
    ):
        block = "import sys; sys.modules['torch'] = None; from sim.commands.main import main; main()"
        command = [sys.executable, "-c", block, "calibrate", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (status, ""), done.stderr
        assert text in done.stderr
        assert done.stderr.count("\n") == 1
