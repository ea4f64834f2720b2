"""Regions of steps: what is reported, weighted and held out together. By kind of step and size, never single rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from calibrate.evidence import EvidenceError, MeasuredStep
from calibrate.samples import band
from costmodel.names import known_names
from costmodel.shape import StepShape

DECODE_EDGES = (4, 16, 64, 256)
TOKEN_EDGES = (64, 512, 4096)
VERIFY_EDGES = (16, 64, 256)
SKEWED_RATIO = 2.0
"""A longest decode context of so many times the mean."""
KINDS = ("decode", "prefill", "verify", "mixed", "mixed with verify")


def kind(shape: StepShape) -> str:
    """Which kinds of work a step has."""
    if shape.prefill:
        if shape.verify:
            return "mixed with verify"
        return "mixed" if shape.decode_requests else "prefill"
    return "verify" if shape.verify else "decode"


def region(shape: StepShape) -> str:
    """Kind and size: `mixed, 64-511 tokens`."""
    name = kind(shape)
    match name:
        case "decode":
            size = band(shape.decode_requests, "requests", DECODE_EDGES)
        case "verify":
            size = band(sum(width for width, _ in shape.verify), "verified tokens", VERIFY_EDGES)
        case _:
            size = band(shape.tokens, "tokens", TOKEN_EDGES)
    return f"{name}, {size}"


def region_order(name: str) -> tuple[int, int]:
    """For sorting regions: by kind, then by size."""
    what, _, size = name.partition(", ")
    first, *rest = size.split()
    low = 0 if first == "<" else int(rest[0] if first == ">=" else first.partition("-")[0])
    return KINDS.index(what), low


def largest_decade(steps: Sequence[MeasuredStep]) -> tuple[str, npt.NDArray[np.bool_]]:
    """A name, and which steps have more than a tenth of the most tokens: predicting them is extrapolation."""
    tokens = np.array([step.shape.tokens for step in steps])
    edge = int(tokens.max()) // 10
    return f"largest decade, > {edge} tokens", tokens > edge


def held_out_mask(what: str, steps: Sequence[MeasuredStep]) -> tuple[str, npt.NDArray[np.bool_]]:
    """A name, and the steps that `--holdout` means: a kind, a region, `largest-decade`, `skewed`."""
    if what == "largest-decade":
        return largest_decade(steps)
    if what == "skewed":
        return "skewed decodes", np.array([step.skew_ratio >= SKEWED_RATIO for step in steps])
    regions = [region(step.shape) for step in steps]
    kinds = [kind(step.shape) for step in steps]
    if what in regions:
        return what, np.array([each == what for each in regions])
    if what in kinds:
        return what, np.array([each == what for each in kinds])
    known = ["largest-decade", "skewed", *dict.fromkeys(kinds), *dict.fromkeys(regions)]
    raise EvidenceError(f"unknown --holdout {what!r}: {known_names(what, known)}")
