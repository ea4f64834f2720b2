"""Step logs that only have sums per step (a CSV with `batch.*`, `kv.*` and times): what they can say, and no more.

Fitted: prefill and decode tokens, requests, KV entries from the pool's usage. How the KV lies between requests and
behind chunks is not in such a log, so attention of prompts, and verification, stay at a prior.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from calibrate.evidence import Evidence, EvidenceError, MeasuredStep, Series, input_file
from calibrate.fit import Candidates
from costmodel.features import Feature
from costmodel.profile import Weight
from costmodel.shape import StepShape
from costmodel.specs import device_spec, model_spec

BATCH: Final = ("batch.num_prefill_reqs", "batch.num_decode_reqs", "batch.prefill_tokens", "batch.decode_tokens")
BLOCKS: Final = ("kv.blocks_total_gpu", "kv.blocks_free_gpu")
CLOCK: Final = ("step.id", "step.ts_start_ns")
CYCLE: Final = "cycle_time_us"
EXPERIMENT: Final = "experiment_id"
BLOCK_TOKENS = 16
"""vLLM's default; such logs count blocks, not tokens."""
LEAST_PAIRS = 30
LIKE_CONTEXT_TOKENS = 4096

AGGREGATE_FEATURES: Candidates = (
    (Feature("steps"), "step"),
    *((Feature("gemm_rows", past), "gemm") for past in (0, 128, 256, 512, 1024, 2048)),
    (Feature("prefill_chunks"), "prefill_rows"),
    (Feature("prefill_tokens"), "prefill_rows"),
    (Feature("decode_rows"), "decode_rows"),
    (Feature("decode_kv_tokens"), "decode_attention"),
)
NEVER_SEEN = ("prefill_pairs", "verify_extra_pairs", "verify_kv_tokens")
"""What such a log cannot say: always at the prior."""
GEMM = ("gemm_rows", "logit_rows")
LEAST_LARGE_STEPS = 10
"""Fewer steps beyond the knee of the prior's GEMMs do not tell what a large prompt costs."""


def is_aggregate_log(path: Path) -> bool:
    """By its first line."""
    if not path.name.endswith((".csv", ".csv.gz")):
        return False
    with gzip.open(path, "rt") if path.name.endswith(".gz") else path.open(encoding="utf-8") as file:
        return BATCH[0] in file.readline(100_000)


def read_aggregate_log(path: Path, *, experiment: str | None, device: str, model: str) -> Evidence:
    """One experiment of the file. `device` and `model` are names in costmodel/specs.py: the log has no shapes."""
    frame = _one_experiment(pd.read_csv(path), experiment, path.name)
    given = len(frame)
    frame, note = _timed(frame, path.name)
    bad = frame["seconds"].isna() | ~np.isfinite(frame["seconds"]) | (frame["seconds"] <= 0)
    if bad.any():
        row = frame[bad].iloc[0]
        raise EvidenceError(f"{path.name}: step {row[CLOCK[0]]:g}: time {row['seconds']} s must be finite and > 0")
    shares = frame["tp"].unique() if "tp" in frame else np.array([1])
    if len(shares) != 1:
        raise EvidenceError(f"{path.name}: tp is {', '.join(map(str, shares))} in one experiment, must be the same")
    steps = tuple(_step(*values) for values in zip(*(frame[c] for c in (*BATCH, *BLOCKS, "seconds")), strict=True))
    return Evidence(
        kind="aggregated step log",
        device=device_spec(device).name,
        model=model_spec(model),
        dtype="bfloat16",
        engine="unknown engine",
        series=(Series(input_file(path, len(steps)), steps),),
        like_context_tokens=LIKE_CONTEXT_TOKENS,
        cuda_graphs=True,
        source="an engine's log with sums per step" + (f", {experiment}" if experiment else ""),
        tensor_parallel=int(shares[0]),
        notes=(
            f"{len(frame):,} of {given:,} steps have a time: {note}",
            f"KV read is what is in use ({BLOCK_TOKENS} tokens a block), shared equally by requests; "
            "prompts are taken as cut into equal chunks without earlier context",
        ),
    )


def aggregate_features(evidence: Evidence, priors: Sequence[Weight]) -> tuple[Candidates, list[Weight]]:
    """What to fit, and the weights that stay at their prior: GEMMs too, where the log has hardly a large step."""
    knee = max((prior.past for prior in priors if prior.quantity in GEMM), default=0)
    large = sum(step.shape.tokens > knee for step in evidence.steps)
    if large >= LEAST_LARGE_STEPS:
        return AGGREGATE_FEATURES, [prior for prior in priors if prior.quantity in NEVER_SEEN]
    candidates = [(feature, part) for feature, part in AGGREGATE_FEATURES if not feature.past]
    kept = (*NEVER_SEEN, *GEMM)
    return candidates, [
        prior for prior in priors if prior.quantity in kept and (prior.past or prior.quantity not in GEMM)
    ]


def _one_experiment(frame: pd.DataFrame, experiment: str | None, name: str) -> pd.DataFrame:
    missing = [column for column in (*BATCH, *BLOCKS) if column not in frame.columns]
    if missing:
        raise EvidenceError(f"{name}:1: no column {', '.join(missing)}: it has {', '.join(frame.columns[:40])}")
    if EXPERIMENT not in frame.columns:
        return frame
    known = sorted(map(str, frame[EXPERIMENT].unique()))
    if experiment is None and len(known) > 1:
        raise EvidenceError(
            f"{name}: {len(known)} experiments, which are not fitted together: --experiment one of {', '.join(known)}"
        )
    if experiment is not None and experiment not in known:
        raise EvidenceError(f"{name}: no --experiment {experiment!r}: it has {', '.join(known)}")
    return frame[frame[EXPERIMENT] == (experiment or known[0])]


def _timed(frame: pd.DataFrame, name: str) -> tuple[pd.DataFrame, str]:
    """The steps whose duration is known, in `seconds`, and how.

    From the start of a step to the start of the next, where both are in the log; else `cycle_time_us`. That column is
    made from token timestamps: in the public file half of it is tens of microseconds (tokens sent out in bursts), and
    the rest is half of what start to start gives. `step.duration_us` is the host's time and never used.
    """
    busy = frame[frame[list(BATCH[:2])].sum(axis=1) > 0]
    if all(column in frame.columns for column in CLOCK):
        ordered = busy.sort_values(CLOCK[0])
        next_is_there = ordered[CLOCK[0]].shift(-1) == ordered[CLOCK[0]] + 1
        seconds = (ordered[CLOCK[1]].shift(-1) - ordered[CLOCK[1]]) * 1e-9
        if next_is_there.sum() >= LEAST_PAIRS:
            return ordered.assign(seconds=seconds)[next_is_there], "from their start to the start of the next step"
    if CYCLE not in frame.columns:
        raise EvidenceError(f"{name}: neither {LEAST_PAIRS} consecutive steps ({', '.join(CLOCK)}) nor {CYCLE}")
    timed = busy[busy[CYCLE].notna()]
    return timed.assign(seconds=timed[CYCLE] * 1e-6), f"{CYCLE}, made from token timestamps"


def _step(
    chunks: int, decodes: int, prefill_tokens: int, decode_tokens: int, total: int, free: int, seconds: float
) -> MeasuredStep:
    """Entries in use are shared equally by all requests of the step; only those of decodes are read as such."""
    kv_tokens = int(total - free) * BLOCK_TOKENS
    context = max(0, kv_tokens * int(decodes) // int(max(1, chunks + decodes)) - int(decodes))
    each, more = divmod(int(prefill_tokens), int(chunks)) if chunks else (0, 0)
    cut = tuple((each + (place < more), 0) for place in range(int(chunks)) if each or place < more)
    return MeasuredStep(StepShape(cut, int(decodes), context if decodes else 0), (float(seconds),))
