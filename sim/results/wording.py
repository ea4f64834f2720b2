"""How figures and foreign text are written in reports: three digits, thousands with commas, nothing that acts."""

from __future__ import annotations

import math

SMALLEST_IN_FULL = 1e-6


def number(value: float) -> str:
    """Three significant digits, whole from 100 on: 0.0312, 3.10, 21.4, 412, 19,204."""
    if math.isinf(value):
        return "inf"
    size = abs(float(f"{value:.3g}"))
    if size == 0:
        return "0"
    if size < SMALLEST_IN_FULL:
        return f"{value:.2e}"
    digits = 0 if size >= 100 else 2 - math.floor(math.log10(size))
    return f"{value:,.{digits}f}"


def percent(ratio: float) -> str:
    """A share in percent with one decimal: 85.8 %. Only nothing is written as 0 %, and only all as 100 %."""
    if ratio in (0, 1):
        return f"{100 * ratio:.0f} %"
    if 0 < ratio < 0.0005:
        return "<0.1 %"
    if 0.9995 <= ratio < 1:
        return ">99.9 %"
    return f"{100 * ratio:.1f} %"


def count(value: int, noun: str) -> str:
    """1 request, 2 requests."""
    return f"{value:,} {noun}" + ("" if value == 1 else "s")


def size(num_bytes: int) -> str:
    """512 B, 3.10 MB, 21.4 GB: powers of ten, as links are rated."""
    for unit, of_it in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= of_it:
            return f"{number(num_bytes / of_it)} {unit}"
    return f"{num_bytes} B"


def milliseconds_or_seconds(longest_s: float) -> tuple[str, float]:
    """The unit in which times up to this one are written, and how many of it a second has."""
    return ("s", 1.0) if longest_s >= 1000 else ("ms", 1000.0)


def visible(text: str) -> str:
    """Text from a trace or a policy with everything that could act on a terminal or reorder a line spelled out."""
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clipped(text: str, width: int) -> str:
    """`visible` text cut to a width, with an ellipsis where something is missing."""
    seen = visible(text)
    return seen if len(seen) <= width else seen[: width - 1] + "…"


def shortened(text: str, width: int) -> str:
    """`visible` text cut in the middle: names of variants differ at their ends."""
    seen = visible(text)
    if len(seen) <= width:
        return seen
    tail = (width - 1) * 2 // 3
    return f"{seen[: width - 1 - tail]}…{seen[-tail:]}"
