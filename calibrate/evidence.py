"""What a profile is fitted to, and judged by: measured steps with where they come from, whatever recorded them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from costmodel.profile import Evidence as Kind
from costmodel.profile import InputFile, KvPool, Rate
from costmodel.shape import StepShape
from costmodel.specs import ModelSpec


class EvidenceError(ValueError):
    """Measurements that cannot be read, do not go together, or are too few. Says what, and where."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One step and its raw times: several where it was repeated, one where an engine's log has it once."""

    shape: StepShape
    seconds: tuple[float, ...]
    decode_contexts: tuple[int, ...] = ()
    """Of each decode, where the source says; their sum is in the shape."""
    rounds: int = 1
    """How often it was measured anew, each time with several samples: what the machine's drift does shows there."""

    @property
    def median_s(self) -> float:
        return float(np.median(self.seconds))

    @property
    def skew_ratio(self) -> float:
        """Longest decode context over the mean: 1 where all are alike, or unknown."""
        mean = self.shape.decode_context_tokens / max(1, self.shape.decode_requests)
        return max(self.decode_contexts) / mean if self.decode_contexts and mean else 1.0

    @property
    def longest_context_tokens(self) -> int:
        others = (context for _, context in (*self.shape.prefill, *self.shape.verify))
        mean = self.shape.decode_context_tokens // max(1, self.shape.decode_requests)
        return max((*others, *self.decode_contexts, mean))


@dataclass(frozen=True, slots=True)
class Series:
    """The steps of one file, in the order in which they ran."""

    file: InputFile
    steps: tuple[MeasuredStep, ...]
    conditions: Mapping[str, object] = field(default_factory=dict)
    """What must be the same in all files of a fit."""
    rates: tuple[Rate, ...] = ()

    @property
    def name(self) -> str:
        return self.file.path


@dataclass(frozen=True, slots=True)
class Evidence:
    """Measured steps of one model on one device."""

    kind: Kind
    device: str
    model: ModelSpec
    dtype: str
    engine: str
    series: tuple[Series, ...]
    like_context_tokens: int
    """Steps whose summed context differs by less count as the same one when noise is measured."""
    source: str
    """What recorded it."""
    tensor_parallel: int = 1
    cuda_graphs: bool = False
    """Whether an engine there pads its batches to captured sizes."""
    pool: KvPool | None = None
    notes: tuple[str, ...] = ()
    """What is not in these times, or was assumed to make steps of them."""

    @property
    def steps(self) -> tuple[MeasuredStep, ...]:
        return tuple(step for series in self.series for step in series.steps)

    @property
    def rates(self) -> tuple[Rate, ...]:
        return tuple(rate for series in self.series for rate in series.rates)


def input_file(path: Path, num_steps: int) -> InputFile:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return InputFile(path=path.name, sha256=digest, num_steps=num_steps or None)


def refuse_mixed(series: Sequence[Series]) -> None:
    """Files that were recorded under different conditions are not fitted together."""
    first = series[0]
    for other in series[1:]:
        for name in (*first.conditions, *other.conditions):
            mine, theirs = first.conditions.get(name), other.conditions.get(name)
            if mine != theirs:
                raise EvidenceError(
                    f"{other.name}: {name} is {theirs!r}, but {mine!r} in {first.name}: "
                    "measurements are fitted together only if device, software, model and dtype are the same"
                )


def noise_floor_ratio(steps: Sequence[MeasuredStep], like_context_tokens: int) -> float | None:
    """Mean of |median / sample - 1| over single samples of the same step; None where nothing was repeated.

    A model that knew every step's median would still be so wrong about single samples. Where enough steps were
    measured anew later in the run, these alone count: samples back to back do not show how a machine drifts. The
    median of n measurements is off itself, so deviations from it are too small by sqrt((n - 1) / n): corrected.
    """
    anew = [step for step in steps if step.rounds > 1]
    same: dict[tuple[object, ...], list[float]] = {}
    rounds: dict[tuple[object, ...], int] = {}
    for step in anew if len(anew) >= LEAST_ANEW else steps:
        shape = step.shape
        context = shape.decode_context_tokens // like_context_tokens
        # exact contexts where the source has them: skewed decodes are another step
        contexts = step.decode_contexts if like_context_tokens == 1 else ()
        key = (shape.prefill, shape.decode_requests, context, contexts, shape.verify)
        same.setdefault(key, []).extend(step.seconds)
        rounds[key] = step.rounds if step.rounds > 1 else len(same[key])
    deviations = [
        float(np.mean(np.abs(np.median(samples) / np.array(samples) - 1)) * (rounds[key] / (rounds[key] - 1)) ** 0.5)
        for key, samples in same.items()
        if len(samples) >= LEAST_REPEATS
    ]
    return float(np.mean(deviations)) if deviations else None


LEAST_REPEATS = 3
"""Fewer samples say nothing about their spread."""
LEAST_ANEW = 5
"""Fewer steps measured anew do not stand for the run."""
