"""Step logs of an engine (`engine-run/1`): each step's batch and duration, and the requests' prompt lengths.

NAME.steps.jsonl[.gz] with NAME.requests.jsonl[.gz] beside it; line 1 of both is {"meta": ...}. A step has `dur_s` and
`batch`: [request id, tokens scheduled, tokens computed before] each; a request has `id` and `prompt_len`.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrate.evidence import Evidence, EvidenceError, MeasuredStep, Series, input_file
from costmodel.shape import StepShape
from costmodel.specs import ModelSpec

SCHEMA, VERSION = "engine-run", 1
STEPS = (".steps.jsonl.gz", ".steps.jsonl")
REQUESTS = (".requests.jsonl.gz", ".requests.jsonl")
MAX_LINE_BYTES = 4 << 20
LIKE_CONTEXT_TOKENS = 128
CHECKED = ("cpu", "cpu_model", "gpu", "torch", "vllm", "package", "clock", "threads", "dtype", "enforce_eager", "model")
"""What of the environment must be the same in all runs of a fit; the clock counts CPU time or wall time."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Run:
    series: Series
    env: Row


def is_step_log(path: Path) -> bool:
    """A steps file, or a directory that has one."""
    return path.name.endswith(STEPS) or (path.is_dir() and any(_steps_files(path)))


def read_engine_runs(paths: list[Path], model_name: str | None) -> Evidence:
    """All runs in the order given; a directory stands for its step logs by name."""
    files = [file for path in paths for file in (_steps_files(path) if path.is_dir() else [path])]
    runs = [_read_run(file) for file in files]
    env = runs[0].env
    model = _model(env.get("model"), files[0].name, model_name)
    threads = env.get("threads")
    return Evidence(
        kind="engine step log",
        device=f"{env.get('gpu') or env.get('cpu') or 'unknown device'}" + (f", {threads} threads" if threads else ""),
        model=model,
        dtype=str(env.get("dtype", "unknown")),
        engine=f"vLLM {env['vllm']}" if "vllm" in env else "unknown engine",
        series=tuple(run.series for run in runs),
        like_context_tokens=LIKE_CONTEXT_TOKENS,
        cuda_graphs="gpu" in env and not env.get("enforce_eager"),
        source=f"the engine's own step log, {SCHEMA}/{VERSION}",
        notes=("whole engine steps: the host's scheduling, sampling and output processing are in these times",),
    )


def _steps_files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.name.endswith(STEPS))


def _read_run(path: Path) -> _Run:
    ending = next(end for end in STEPS if path.name.endswith(end))
    stem = path.name.removesuffix(ending)
    found = [path.with_name(stem + end) for end in REQUESTS if path.with_name(stem + end).is_file()]
    if not found:
        raise EvidenceError(
            f"{path.name}: no {stem}{REQUESTS[0]} beside it, which says how long each prompt is: "
            "without it a decode cannot be told from the last token of a prompt"
        )
    prompts = {row["id"]: row["prompt_len"] for _, row in _rows(found[0], {"id": str, "prompt_len": int})[1]}
    meta, rows = _rows(path, {"dur_s": float, "batch": list})
    steps = tuple(_step(row, prompts, f"{path.name}:{number}") for number, row in rows if row["batch"])
    env: Row = meta["env"] if isinstance(meta.get("env"), dict) else {}
    conditions = {name: env[name] for name in CHECKED if name in env}
    return _Run(Series(input_file(path, len(steps)), steps, conditions), env)


def _rows(path: Path, needed: Mapping[str, type]) -> tuple[Row, Iterator[tuple[int, Row]]]:
    """The meta line, and the others checked for the fields needed, with their line numbers."""
    lines = _lines(path)
    number, first = next(lines, (1, {}))
    meta = first.get("meta")
    schema = meta.get("schema") if isinstance(meta, dict) else None
    name, _, version = str(schema).partition("/")
    if name != SCHEMA or not isinstance(meta, dict):
        raise EvidenceError(f"{path.name}:{number}: schema is {schema!r:.80}, must be '{SCHEMA}/{VERSION}'")
    if version.isdecimal() and int(version) > VERSION:
        raise EvidenceError(f"{path.name}:1: {schema!r} is newer than this program knows ({SCHEMA}/{VERSION})")
    return meta, _checked(path.name, lines, needed)


def _checked(name: str, lines: Iterator[tuple[int, Row]], needed: Mapping[str, type]) -> Iterator[tuple[int, Row]]:
    for number, row in lines:
        for field, kind in needed.items():
            value: Any = row.get(field)
            known = (float, int) if kind is float else kind
            if isinstance(value, bool) or not isinstance(value, known):
                raise EvidenceError(f"{name}:{number}: {field} must be a {kind.__name__}, got {value!r:.80}")
            if isinstance(value, int | float) and kind is float and not 0 < value < math.inf:
                raise EvidenceError(f"{name}:{number}: {field}={value} must be finite and > 0")
        yield number, row


def _lines(path: Path) -> Iterator[tuple[int, Row]]:
    with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise EvidenceError(f"{path.name}:{number}: not JSON: {error}") from None
            if not isinstance(row, dict):
                raise EvidenceError(f"{path.name}:{number}: must be an object, got {row!r:.80}")
            yield number, row


def _step(row: Row, prompts: Mapping[str, int], place: str) -> MeasuredStep:
    """One token behind a whole prompt is a decode; all else computes a prompt, or recomputes after a preemption."""
    chunks, contexts = [], []
    for item in row["batch"]:
        if not (isinstance(item, list) and len(item) == 3 and all(type(n) is int and n >= 0 for n in item[1:])):
            raise EvidenceError(f"{place}: batch must hold [id, tokens, computed tokens], got {item!r:.80}")
        request, tokens, computed = item
        if request not in prompts:
            raise EvidenceError(f"{place}: request {request!r:.80} is not in the requests file")
        if tokens == 1 and computed >= prompts[request]:
            contexts.append(computed)
        else:
            chunks.append((tokens, computed))
    shape = StepShape(tuple(chunks), len(contexts), sum(contexts))
    return MeasuredStep(shape, (float(row["dur_s"]),), tuple(contexts))


def _model(config: object, place: str, name: str | None) -> ModelSpec:
    """From a Hugging Face config as the log has it."""
    if not isinstance(config, dict):
        raise EvidenceError(f"{place}:1: meta.env.model must be the model's config, got {config!r:.80}")
    fields = {
        "layers": "num_hidden_layers",
        "query_heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "hidden": "hidden_size",
        "intermediate": "intermediate_size",
        "vocabulary": "vocab_size",
        "max_model_len": "max_position_embeddings",
    }
    missing = [theirs for theirs in fields.values() if not isinstance(config.get(theirs), int)]
    if missing:
        raise EvidenceError(f"{place}:1: meta.env.model has no whole number {', '.join(missing)}")
    spec = ModelSpec(name=name or "model", **{ours: config[theirs] for ours, theirs in fields.items()})
    millions = round(spec.parameters / 1e6)
    return spec if name else spec.model_copy(update={"name": f"{config.get('model_type', 'model')}-{millions}m"})
