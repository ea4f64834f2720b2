"""Random numbers keyed by (seed, stream, request): a draw never depends on how many others are drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workloads.trace import IntArray

FloatArray = NDArray[np.float64]

_BITS = 52
"""Of a number: k + 0.5 is still exact for every k below 2**52, so neither 0 nor 1 can come out."""


def uniforms(seed: int, stream: str, num: int) -> FloatArray:
    """Element i is the stream's i-th number, strictly between 0 and 1. Shape: (num,).

    Philox counts: its raw numbers are a function of key and place. They are stable over numpy versions.
    """
    digest = hashlib.sha256(f"{seed}/{stream}".encode()).digest()
    raw = np.random.Philox(key=int.from_bytes(digest[:16], "big")).random_raw(num)
    return ((raw >> np.uint64(64 - _BITS)).astype(np.float64) + 0.5) * 2.0**-_BITS


def normals(seed: int, stream: str, num: int) -> FloatArray:
    """Standard normal numbers (Box-Muller: two uniforms for each, so that each is its own). Shape: (num,)."""
    radius = np.sqrt(-2.0 * np.log(uniforms(seed, f"{stream}/radius", num)))
    return radius * np.cos(2.0 * np.pi * uniforms(seed, f"{stream}/angle", num))


def gammas(seed: int, stream: str, num: int, shape: float) -> FloatArray:
    """Gamma numbers of this shape > 0 and scale 1. Shape: (num,).

    Marsaglia and Tsang, "A simple method for generating gamma variables", ACM TOMS 26 (2000): rounds of
    rejection, each with numbers of its own, for all that are still open; below 1 by the boost of their section 6.
    """
    if shape < 1.0:
        boost = uniforms(seed, f"{stream}/boost", num) ** (1.0 / shape)
        return gammas(seed, stream, num, shape + 1.0) * boost
    d = shape - 1.0 / 3.0
    out = np.zeros(num)
    open_places = np.arange(num)
    rounds = 0
    while len(open_places):
        x = normals(seed, f"{stream}/{rounds}", num)[open_places]
        u = uniforms(seed, f"{stream}/{rounds}", num)[open_places]
        v = np.maximum(1.0 + x / np.sqrt(9.0 * d), 0.0) ** 3
        with np.errstate(divide="ignore"):
            accepted = (v > 0.0) & (np.log(u) < 0.5 * x * x + d - d * v + d * np.log(v))
        out[open_places[accepted]] = d * v[accepted]
        open_places = open_places[~accepted]
        rounds += 1
    return out


def picks(seed: int, stream: str, num: int, weights: Sequence[float]) -> IntArray:
    """Indices into `weights`, each with a probability in proportion to its weight. Shape: (num,)."""
    edges = np.cumsum(np.asarray(weights, dtype=np.float64))
    found: IntArray = np.searchsorted(edges, uniforms(seed, stream, num) * edges[-1], side="right")
    return np.minimum(found, len(edges) - 1)
