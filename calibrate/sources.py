"""Which kind of measurements a path holds, found by looking into it, and reading it as evidence."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from calibrate.aggregate_log import is_aggregate_log
from calibrate.bench_result import is_bench_result
from calibrate.engine_runs import is_step_log, read_engine_runs
from calibrate.evidence import Evidence, EvidenceError
from calibrate.public_tables import GEMM_FILE
from calibrate.records import SCHEMA_NAME
from calibrate.timed_samples import read_timed_samples
from costmodel.profile import Profile

Source = Literal["operator tables", "samples", "engine step log", "aggregated step log", "bench result"]
SAMPLES_FILE = "samples.jsonl"
"""What `calibrate run` calls its samples."""
ALLOWED = (
    f"a directory of aiconfigurator's tables ({GEMM_FILE}), an engine's step log (NAME.steps.jsonl[.gz], or a "
    "directory of them), a CSV with sums per step (batch.*), a result of vllm bench serve (.json)"
)


def found(paths: Sequence[Path]) -> list[Path]:
    """The paths; a directory that `calibrate run` wrote stands for its samples."""
    return [path / SAMPLES_FILE if (path / SAMPLES_FILE).is_file() else path for path in paths]


def detect(path: Path) -> Source:
    """Raises EvidenceError for what is none of them, OSError for what is not there."""
    if is_step_log(path):
        return "engine step log"
    if path.is_dir():
        return "operator tables"
    if is_aggregate_log(path):
        return "aggregated step log"
    if is_bench_result(path):
        return "bench result"
    if f'"{SCHEMA_NAME}' in _first_line(path):
        return "samples"
    raise EvidenceError(f"{path.name}: not known what this is: can be read are {ALLOWED}, samples of `calibrate run`")


def detect_all(paths: Sequence[Path]) -> Source:
    """The kind that all of them are."""
    kinds = {path: detect(path) for path in paths}
    first, *others = dict.fromkeys(kinds.values())
    if others:
        raise EvidenceError("different kinds: " + ", ".join(f"{path.name} is {kind}" for path, kind in kinds.items()))
    return first


def read_steps(paths: Sequence[Path], model_name: str | None = None) -> Evidence:
    """Steps with all that is known of their shape: samples, or an engine's step log."""
    match detect_all(paths):
        case "samples":
            return read_timed_samples(list(paths))
        case "engine step log":
            return read_engine_runs(list(paths), model_name)
        case kind:
            raise EvidenceError(f"{paths[0].name} is {kind}: single steps can be judged only by samples or step logs")


def refuse_other_model(profile: Profile, evidence: Evidence) -> None:
    """Weights are of one model in one dtype: nothing follows from them for another."""
    mine, theirs = profile.shapes(), evidence.model
    for name, value in mine.model_dump(exclude={"name", "max_model_len"}).items():
        other = getattr(theirs, name)
        if value != other:
            raise EvidenceError(
                f"profile {profile.name} is for another model: {name} is {value} in {mine.name}, "
                f"but {other} in {theirs.name} of {evidence.series[0].name}"
            )
    if profile.dtype != evidence.dtype:
        raise EvidenceError(
            f"profile {profile.name} is for dtype {profile.dtype}, {evidence.series[0].name} is {evidence.dtype}"
        )


def _first_line(path: Path) -> str:
    with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
        return file.readline(100_000).decode(errors="replace")
