"""`calibrate import`: from a directory of tables to a profile that prices steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from calibrate.compose import StepComposer
from calibrate.cross_check import CHECKED_TOKENS, LAYERS_OF_PART, cross_check, cross_check_text
from calibrate.import_command import import_measurements
from calibrate.profile_from_tables import profile_from_tables, table_provenance
from calibrate.public_tables import TableError, read_tables
from costmodel.profile import Profile, load_profile
from costmodel.shape import StepShape
from costmodel.specs import device_spec, model_spec
from costmodel.token_weights import TokenWeightsModel
from sim.commands.errors import Failure

SHIPPED = "h100-llama-3.1-8b-bf16"
TABLES = "data/profiles/aiconfigurator/h100_sxm/vllm-0.24.0"
LAYERS = "data/profiles/llmservingsim_v0/H100/meta-llama/Llama-3.1-8B/tp1/layers.csv.gz"


@pytest.fixture(scope="module")
def refit(shared_dir: Path) -> tuple[Profile, StepComposer]:
    directory = shared_dir / TABLES
    tables = read_tables(directory, query_heads=32, kv_heads=8, head_dim=128)
    composer = StepComposer(tables, model_spec("llama-3.1-8b"), device_spec("h100-sxm"))
    return profile_from_tables(SHIPPED, composer, table_provenance(directory, tables)), composer


def test_the_shipped_profile_is_what_the_tables_give(refit: tuple[Profile, StepComposer]) -> None:
    """Same inputs by hash, same grid, same errors; weights to five digits (solvers differ in the last)."""
    again, shipped = refit[0], load_profile(SHIPPED)
    assert again.provenance == shipped.provenance
    assert [w.model_copy(update={"s_per_unit": 0}) for w in again.weights] == [
        w.model_copy(update={"s_per_unit": 0}) for w in shipped.weights
    ]
    assert [w.s_per_unit for w in again.weights] == pytest.approx([w.s_per_unit for w in shipped.weights], rel=1e-5)
    unlike = {"weights", "fit_errors", "held_out_errors", "worst_steps"}
    assert again.model_dump(exclude=unlike) == shipped.model_dump(exclude=unlike)
    for ours, theirs in zip(again.held_out_errors, shipped.held_out_errors, strict=True):
        assert (ours.region, ours.num_steps) == (theirs.region, theirs.num_steps)
        assert ours.mape_ratio == pytest.approx(theirs.mape_ratio, abs=2e-4)


@pytest.mark.parametrize(
    ("requests", "context", "low_ms", "high_ms"),
    [(64, 2048, 12.3, 12.7), (128, 2048, 17.6, 18.0), (256, 1024, 18.6, 19.6)],
)
def test_composed_decode_steps_are_as_another_study_found(
    refit: tuple[Profile, StepComposer], requests: int, context: int, low_ms: float, high_ms: float
) -> None:
    """Device time, within 2 % of its range (which norms and sampler cost is assumed by both)."""
    found_ms = refit[1].seconds(StepShape((), requests, requests * context)) * 1e3
    assert low_ms * 0.98 <= found_ms <= high_ms * 1.02


def test_composed_gemms_agree_with_another_profiler(refit: tuple[Profile, StepComposer], shared_dir: Path) -> None:
    """Large projections within 15 %; q, k, v apart and eager norms are slower there, as they must be."""
    for row in cross_check(shared_dir / LAYERS, refit[1]):
        ratio = row.composed_s / row.measured_s
        if row.part in ("attention_out", "gate_up", "down"):
            assert ratio == pytest.approx(1, abs=0.16), row
        if row.part in ("qkv", "small_kernels"):
            assert ratio < 1, row


def test_importing_made_up_tables(tables_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole way, and stdout is the same bytes every time."""
    outputs = []
    for name in ("a.json", "b.json"):
        import_measurements([tables_dir], tmp_path / name, name="made-up")
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert "error against held-out regions" in outputs[0]
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    profile = load_profile(str(tmp_path / "a.json"))
    assert (profile.name, profile.device, profile.engine) == ("made-up", "GPU", "ENGINE 1.0")
    assert profile.provenance.files[0].path == "h100_sxm/engine-1.0/gemm_perf.parquet"


def test_made_up_tables_are_fitted_nearly_exactly(composer: StepComposer, tables_dir: Path) -> None:
    """Rows, pairs and KV cost what the tables were made of."""
    profile = profile_from_tables("made-up", composer, table_provenance(tables_dir, composer.tables))
    assert profile.fit_errors[-1].mape_ratio < 0.01
    model = TokenWeightsModel(profile.terms())
    fewer, more = StepShape((), 64, 64 * 2000), StepShape((), 64, 64 * 3000)
    assert model.seconds(more) - model.seconds(fewer) == pytest.approx(32 * 64_000e-9, rel=0.05)


def test_an_existing_file_is_replaced_only_by_force(tables_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    out.write_text("mine", encoding="utf-8")
    with pytest.raises(Failure, match="exists already"):
        import_measurements([tables_dir], out)
    assert out.read_text(encoding="utf-8") == "mine"
    import_measurements([tables_dir], out, force=True)
    assert load_profile(str(out)).name == SHIPPED


def test_as_a_program(tmp_path: Path) -> None:
    """A directory without tables ends with status 1, one that is not there with 2; both with one line."""
    program = "from sim.commands.main import main; main()"
    (tmp_path / "empty").mkdir()
    for place, status, text in (
        ("empty", 1, "empty: no gemm_perf.parquet, context_attention_perf.parquet"),
        ("nowhere", 2, "nowhere: No such file or directory"),
    ):
        arguments = ["calibrate", "import", place, "--out", "p.json"]
        command = [sys.executable, "-c", program, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert (result.returncode, result.stdout) == (status, "")
        assert result.stderr.startswith(f"tokenwork: {text}")


def test_cross_check_reads_layers(composer: StepComposer, tmp_path: Path) -> None:
    """One microsecond for every layer and size: the sum is over the layers of a part, times the model's 32."""
    names = [name for part in LAYERS_OF_PART.values() for name in part]
    rows = [{"layer_name": name, "input": m, "latency(ns)": 1000} for name in names for m in CHECKED_TOKENS]
    file = tmp_path / "layers.csv"
    pd.DataFrame(rows).to_csv(file, index=False)
    found = cross_check(file, composer)
    assert {(row.part, round(row.measured_s * 1e6)) for row in found} == {
        (part, 32 * len(layers)) for part, layers in LAYERS_OF_PART.items()
    }
    assert cross_check_text(found).count("\n") == len(CHECKED_TOKENS)


def test_cross_check_of_another_file(composer: StepComposer, tmp_path: Path) -> None:
    file = tmp_path / "other.csv"
    file.write_text("layer_name,input\n", encoding="utf-8")
    with pytest.raises(TableError, match=r"other.csv: no column latency\(ns\)"):
        cross_check(file, composer)
