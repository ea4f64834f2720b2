"""How a weight is written down."""

from __future__ import annotations

from costmodel.features import Feature
from costmodel.profile import Origin, Weight

SIGNIFICANT_DIGITS = 6


def weight(
    feature: Feature, part: str, s_per_unit: float, origin: Origin, interval: tuple[float, float] | None = None
) -> Weight:
    """`interval`: what the evidence also agrees with, low and high."""
    low, high = (None, None) if interval is None else (rounded(interval[0]), rounded(interval[1]))
    return Weight(
        quantity=feature.quantity,
        past=feature.past,
        past_each=feature.past_each,
        s_per_unit=rounded(s_per_unit),
        part=part,
        origin=origin,
        low_s_per_unit=low,
        high_s_per_unit=high,
    )


def rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
