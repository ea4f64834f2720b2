"""How long prompts and outputs are: fixed, lognormal, or as observed."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from workloads.config import Config, wrong
from workloads.rng import FloatArray, normals, picks
from workloads.trace import IntArray

_MOST_TOKENS = 10_000_000
Tokens = Annotated[int, Field(ge=1, le=_MOST_TOKENS)]


class Fixed(Config):
    """All the same."""

    kind: Literal["fixed"] = "fixed"
    tokens: Tokens


class Lognormal(Config):
    """Lognormal with this mean (of the lengths, before they are clipped; not mu) and this sigma of the logarithm."""

    kind: Literal["lognormal"] = "lognormal"
    mean_tokens: float = Field(gt=0, le=_MOST_TOKENS)
    sigma: float = Field(ge=0, le=10)
    min_tokens: Tokens = 1
    max_tokens: Tokens = 131_072

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if self.min_tokens > self.max_tokens:
            raise wrong(f"min_tokens must be <= max_tokens={self.max_tokens}, got {self.min_tokens}")
        return self


class Empirical(Config):
    """One of these values, each as often as its weight says (all alike without weights)."""

    kind: Literal["empirical"] = "empirical"
    values: tuple[Tokens, ...] = Field(min_length=1)
    weights: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] | None = None

    @model_validator(mode="after")
    def _one_weight_each(self) -> Self:
        if self.weights is not None and len(self.weights) != len(self.values):
            raise wrong(f"weights must be {len(self.values)}, as values, got {len(self.weights)}")
        if self.weights is not None and not sum(self.weights) > 0:
            raise wrong("weights must not all be 0")
        return self

    @staticmethod
    def of(column: IntArray) -> Empirical:
        """The distribution of a trace's column, e.g. `trace.output_tokens`."""
        values, counts = np.unique(column, return_counts=True)
        return Empirical(values=tuple(values.tolist()), weights=tuple(counts.tolist()))


Lengths = Annotated[Fixed | Lognormal | Empirical, Field(discriminator="kind")]


def length_tokens(lengths: Fixed | Lognormal | Empirical, num_requests: int, seed: int, stream: str) -> IntArray:
    """Lengths >= 1. Shape: (num_requests,)."""
    if isinstance(lengths, Fixed):
        return np.full(num_requests, lengths.tokens, dtype=np.int64)
    if isinstance(lengths, Lognormal):
        return _lognormal(lengths, normals(seed, stream, num_requests))
    weights = lengths.weights or (1.0,) * len(lengths.values)
    return np.array(lengths.values, dtype=np.int64)[picks(seed, stream, num_requests, weights)]


def _lognormal(lengths: Lognormal, z: FloatArray) -> IntArray:
    mu = np.log(lengths.mean_tokens) - lengths.sigma**2 / 2.0  # so that exp(mu + sigma²/2) is the mean
    drawn = np.exp(mu + lengths.sigma * z)
    whole: IntArray = np.rint(np.clip(drawn, lengths.min_tokens, lengths.max_tokens)).astype(np.int64)
    return whole
