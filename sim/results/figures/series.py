"""How a variant looks in every figure of a comparison: its colour, its marker, its line."""

from __future__ import annotations

from dataclasses import dataclass

from sim.results.comparison.comparison import Comparison
from sim.results.comparison.words import letter
from sim.results.figures.drawing import BLACK, BLUE, GREEN, ORANGE, PINK, RED, SKY
from sim.results.wording import shortened

COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, RED, BLACK)
MARKERS = "os^Dv<>P*X"
STYLES = ("-", "--", "-.", ":")
LABEL_WIDTH = 20


@dataclass(frozen=True, slots=True)
class Look:
    colour: str
    marker: str
    style: str
    label: str
    letter: str


def look(comparison: Comparison, variant: str) -> Look:
    at = comparison.variants.index(variant)
    sign = letter(comparison, variant)
    return Look(
        COLOURS[at % len(COLOURS)],
        MARKERS[at % len(MARKERS)],
        STYLES[at % len(STYLES)],
        f"{sign} {shortened(variant, LABEL_WIDTH)}",
        sign,
    )
