"""Measurements from a machine whose every weight is known, with and without noise."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.records import Measurement, SamplesWriter
from calibrate.tasks import TaskSpec
from costmodel.features import Feature, feature_values
from costmodel.shape import StepShape
from costmodel.specs import ModelSpec

MODEL = ModelSpec(
    name="tiny",
    layers=2,
    query_heads=8,
    kv_heads=2,
    head_dim=16,
    hidden=128,
    intermediate=256,
    vocabulary=512,
    max_model_len=4096,
)
TRUTH = {
    Feature("steps"): 5e-3,
    Feature("gemm_rows", 32): 30e-6,
    Feature("prefill_pairs"): 40e-9,
    Feature("decode_rows"): 100e-6,
    Feature("decode_kv_tokens"): 0.5e-6,
    Feature("mixed_decode_kv_tokens"): 0.25e-6,
    Feature("verify_requests"): 120e-6,
    Feature("verify_extra_rows"): 20e-6,
    Feature("verify_kv_tokens"): 0.6e-6,
}


def true_s(shape: StepShape) -> float:
    """What a step takes on the made-up machine."""
    return sum(s * value for s, value in zip(TRUTH.values(), feature_values(shape, list(TRUTH)), strict=True))


def tasks(count: int, seed: int = 3) -> list[TaskSpec]:
    """Steps of all kinds: decodes, chunks, mixed ones, verifications and everything at once, in turn."""
    rng = np.random.default_rng(seed)

    def up_to(most: int) -> int:
        return int(most ** rng.random())

    def one(kind: int) -> TaskSpec:
        chunks = tuple((up_to(600), up_to(2000) - 1) for _ in range(up_to(3)))
        decodes = tuple(up_to(3000) for _ in range(up_to(60)))
        verify = tuple((2 + up_to(4), up_to(3000)) for _ in range(up_to(20)))
        return TaskSpec(
            "step",
            prefill=chunks if kind in (1, 2, 4) else (),
            decode=decodes if kind in (0, 2, 4) else (),
            verify=verify if kind in (3, 4) else (),
        )

    return [one(i % 5) for i in range(count)]


def header(**changes: Any) -> dict[str, Any]:
    raw = {
        "schema": "tokenwork-samples/1",
        "device": {"name": "made-up", "kind": "cpu", "memory_bytes": 1 << 34, "threads": 1},
        "software": {"python": "3.11", "torch": "2.13", "kernels": "plain"},
        "model": MODEL.model_dump(),
        "dtype": "float32",
        "block_tokens": 16,
        "created": "2026-11-30",
        "seed": 0,
        "minutes": 1.0,
    }
    return raw | changes


def measured(task: TaskSpec, noise: float, rng: np.random.Generator, repeats: int = 5) -> Measurement:
    seconds = true_s(task.shape) * np.exp(rng.normal(0, noise, size=repeats))
    return Measurement(task, tuple(seconds.tolist()))


def samples_file(path: Path, *, count: int = 300, noise: float = 0.0, seed: int = 3, **changes: Any) -> Path:
    """A samples file of the made-up machine; `changes` are of its header."""
    from calibrate.records import Header

    rng = np.random.default_rng(seed)
    with SamplesWriter(path, Header.model_validate(header(**changes))) as writer:
        for task in tasks(count, seed):
            writer.append(measured(task, noise, rng))
    return path


def step_log(directory: Path, name: str, *, speed: float = 1.0, noise: float = 0.0, **env: Any) -> Path:
    """An engine's log: requests of 100 prompt tokens that arrive one by one and decode together."""
    rng = np.random.default_rng(1)
    about = {"cpu": "made-up", "threads": 1, "dtype": "float32", "model": config()} | env
    meta = json.dumps({"meta": {"schema": "engine-run/1", "env": about}})
    requests, steps = [meta], [meta]
    running: list[list[Any]] = []
    for i in range(400):
        batch = [[request, 1, done] for request, done in running]
        if i % 40 == 0:
            requests.append(json.dumps({"id": f"r{i}", "prompt_len": 100}))
            batch.append([f"r{i}", 100, 0])
        if not batch:
            continue
        chunks = tuple((n, done) for _, n, done in batch if n > 1)
        contexts = [done for _, n, done in batch if n == 1]
        shape = StepShape(chunks, len(contexts), sum(contexts))
        dur_s = speed * true_s(shape) * float(np.exp(rng.normal(0, noise)))
        steps.append(json.dumps({"i": i, "dur_s": dur_s, "batch": batch}))
        running = [[request, done + n] for request, n, done in batch if done + n < 400]
    for table, lines in (("requests", requests), ("steps", steps)):
        with gzip.open(directory / f"{name}.{table}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    return directory / f"{name}.steps.jsonl.gz"


def config() -> dict[str, Any]:
    return {
        "model_type": "llama",
        "num_hidden_layers": MODEL.layers,
        "num_attention_heads": MODEL.query_heads,
        "num_key_value_heads": MODEL.kv_heads,
        "head_dim": MODEL.head_dim,
        "hidden_size": MODEL.hidden,
        "intermediate_size": MODEL.intermediate,
        "vocab_size": MODEL.vocabulary,
        "max_position_embeddings": MODEL.max_model_len,
    }
