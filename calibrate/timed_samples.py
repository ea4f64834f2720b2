"""Samples files of `calibrate run` as evidence: the steps among their tasks, and what copies and launches say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from calibrate.evidence import Evidence, EvidenceError, MeasuredStep, Series, input_file
from calibrate.records import Header, Measurement, SamplesFile, TaskSpec, read_samples
from costmodel.pool import kv_pool
from costmodel.profile import KvPool, Rate

HALF_PRECISION: Final = ("bfloat16", "float16")
LIKE_CONTEXT_TOKENS = 1
"""Steps are repeated exactly."""
NOT_IN_THEM = (
    "forward passes with sampling, timed by themselves: no server is around them, so scheduling, tokenising and "
    "sending out tokens on a host are not in these times"
)

NO_POOL = (
    "how much KV fits is not known from these samples: an engine whose flags do not say how many blocks it has gets "
    "room for 2^20 tokens"
)


def read_timed_samples(paths: list[Path]) -> Evidence:
    """One or several files of the same device, software, model and dtype."""
    files = [read_samples(path) for path in paths]
    first = files[0].header
    for path, file in zip(paths[1:], files[1:], strict=True):
        difference = first.difference(file.header)
        if difference:
            raise EvidenceError(f"{path.name}:1: does not go together with {paths[0].name}: {difference}")
    pool = _pool(first)
    return Evidence(
        kind="samples",
        device=first.device.name + (f", {first.device.threads} threads" if first.device.threads else ""),
        model=first.model,
        dtype=first.dtype,
        engine=f"torch {first.software.torch}, {first.software.kernels} attention",
        series=tuple(_series(path, file) for path, file in zip(paths, files, strict=True)),
        like_context_tokens=LIKE_CONTEXT_TOKENS,
        source="tokenwork calibrate run, " + ", ".join(sorted({file.header.created for file in files})),
        cuda_graphs=first.device.kind == "cuda",
        pool=pool,
        notes=(NOT_IN_THEM, *([] if pool else [NO_POOL]), *_lost(files)),
    )


def _series(path: Path, file: SamplesFile) -> Series:
    times = repeated(file.measurements)
    rounds = Counter(measurement.task for measurement in file.measurements if measurement.outcome == "ok")
    steps = tuple(
        MeasuredStep(task.shape, seconds, task.decode, rounds[task])
        for task, seconds in times.items()
        if task.kind == "step"
    )
    return Series(input_file(path, len(steps)), steps, rates=tuple(_rates(times)))


def repeated(measurements: Iterable[Measurement]) -> dict[TaskSpec, tuple[float, ...]]:
    """All samples of each task that ran, in order of first appearance; repeats later in the run are pooled."""
    times: dict[TaskSpec, tuple[float, ...]] = {}
    for measurement in measurements:
        if measurement.outcome == "ok":
            times[measurement.task] = times.get(measurement.task, ()) + measurement.seconds
    return times


def _rates(times: dict[TaskSpec, tuple[float, ...]]) -> Iterable[Rate]:
    """Of the largest copy of each kind its bandwidth, and the latency of a launch."""
    largest: dict[str, TaskSpec] = {}
    for task in times:
        if task.kind in ("copy", "swap_out", "swap_in", "launch"):
            largest[task.kind] = max(task, largest.get(task.kind, task), key=lambda each: each.num_bytes)
    for kind, task in sorted(largest.items()):
        sampled = Measurement(task, times[task])
        noise = round(sampled.noise_ratio, 4)
        if kind == "launch":
            yield Rate(what=kind, value=sampled.median_s, unit="s", noise_ratio=noise)
        else:
            yield Rate(what=kind, value=round(task.num_bytes / sampled.median_s), unit="B/s", noise_ratio=noise)


def _lost(files: Iterable[SamplesFile]) -> list[str]:
    outcomes = [m.outcome for file in files for m in file.measurements]
    counts = {"ran out of memory": outcomes.count("oom"), "failed": outcomes.count("failed")}
    return [f"{count} tasks {what} and are not in the fit" for what, count in counts.items() if count]


def _pool(header: Header) -> KvPool | None:
    """Of a GPU, by its memory; a CPU's is what the engine is told."""
    if header.device.kind != "cuda" or header.dtype not in HALF_PRECISION:
        return None
    try:
        return kv_pool(header.model, header.device)
    except ValueError:
        return None  # weights and reserves fill it: the engine's flags must say
