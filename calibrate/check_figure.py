"""The figure of `calibrate check`: predicted over measured, step by step."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from calibrate.evidence import Evidence, noise_floor_ratio
from calibrate.regions import KINDS, kind
from costmodel.profile import Profile
from costmodel.token_weights import TokenWeightsModel

COLOURS = dict(zip(KINDS, ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#000000"), strict=True))
"""Okabe and Ito's, which most people can tell apart."""
MARKERS = dict(zip(KINDS, ("o", "s", "^", "D", "x"), strict=True))
MS_PER_S = 1e3


def draw_check(profile: Profile, evidence: Evidence, out: Path) -> None:
    """The figure as a file; the same bytes every time."""
    with mpl.rc_context({"svg.hashsalt": "tokenwork"}):
        check_figure(profile, evidence).savefig(out, dpi=150, metadata={"Date": None} if out.suffix == ".svg" else {})


def check_figure(profile: Profile, evidence: Evidence) -> Figure:
    """One point per step: its measured median against predicted over measured; the band is the noise floor."""
    model = TokenWeightsModel(profile.terms())
    steps = evidence.steps
    measured = np.array([step.median_s for step in steps])
    ratios = np.array([model.seconds(step.shape) for step in steps]) / measured
    kinds = np.array([kind(step.shape) for step in steps])
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    noise = noise_floor_ratio(steps, evidence.like_context_tokens)
    if noise:
        axes.axhspan(1 - noise, 1 + noise, color="0.9", label=f"noise floor, ±{noise:.1%}")
    axes.axhline(1, color="0.4", linewidth=0.8)
    for name in KINDS:
        inside = kinds == name
        if inside.any():
            error = np.abs(ratios[inside] - 1).mean()
            label = f"{name}: {inside.sum()} steps, MAPE {error:.1%}"
            axes.scatter(measured[inside] * MS_PER_S, ratios[inside], s=14, alpha=0.7, linewidths=0.8,
                         color=COLOURS[name], marker=MARKERS[name], label=label)  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel("measured step time, ms (median)")
    axes.set_ylabel("predicted / measured")
    axes.set_title(f"{profile.name} against {evidence.model.name}, {evidence.dtype}, {evidence.device}", fontsize=10)
    axes.legend(fontsize=8, loc="best")
    axes.grid(alpha=0.25)
    return figure
