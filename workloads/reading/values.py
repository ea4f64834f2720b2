"""From a field's text or JSON value to an exact integer: strict, bounded, never through a float."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Final, Literal

from workloads.reading.errors import FailedRow, RowError, named

MAX_DIGITS: Final = 20
"""Of any integer: enough for 64 bits without a sign."""
MAX_ID: Final = 2**64 - 1
MAX_NS: Final = 2**62 - 1
"""146 years, so that a sum of two times still fits 64 bits."""

TimeUnit = Literal["s", "ms", "us", "ns"]
UNIT_NS: Final[dict[TimeUnit, int]] = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

_WHOLE = re.compile(r"([+-]?[0-9]+)(?:\.0*)?")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_DECIMAL_CHARACTERS = 64
_EXACT = Context(prec=400, rounding=ROUND_HALF_EVEN)


def whole_number(name: str, value: object, low: int, high: int) -> int:
    """An integer in [low, high]. `76.0` is one (tables with gaps write them so); `7_6`, `true`, `1e3` are not."""
    if type(value) is int:
        number = value
    elif type(value) is str and len(value) <= MAX_DIGITS and value.isdigit() and value.isascii():
        number = int(value)
    else:
        number = _unusual_whole(name, value, low)
    if low <= number <= high:
        return number
    raise RowError(_out_of_range(name, number, low, high))


def time_ns(name: str, value: object, unit: TimeUnit) -> int:
    """A time >= 0 in nanoseconds, rounded half to even where the text is finer."""
    exact = _decimal(name, value)
    if exact < 0:
        raise RowError(f"{named(name, value)} must be >= 0")
    if exact > MAX_NS // UNIT_NS[unit]:
        raise RowError(f"{named(name, value)} must be <= {MAX_NS // UNIT_NS[unit]} {unit}")
    return int(_EXACT.to_integral_value(_EXACT.multiply(exact, Decimal(UNIT_NS[unit]))))


def lengths(prompt: tuple[str, object], output: tuple[str, object], max_tokens: int) -> tuple[int, int]:
    """Prompt and output tokens out of (name, value) pairs. An output of 0 raises `FailedRow`."""
    output_tokens = whole_number(*output, 0, max_tokens)
    if output_tokens == 0:
        raise FailedRow(f"{output[0]}=0: the request failed when the trace was taken")
    return whole_number(*prompt, 1, max_tokens), output_tokens


def _unusual_whole(name: str, value: object, low: int) -> int:
    if isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) <= MAX_DIGITS:
        value = format(value, "f")
    found = _WHOLE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise RowError(f"{named(name, value)} must be an integer >= {low}")
    digits = found[1].lstrip("+-")
    if len(digits) > MAX_DIGITS:
        raise RowError(f"{named(name, value)} must have at most {MAX_DIGITS} digits, has {len(digits)}")
    return int(found[1])


def _out_of_range(name: str, number: int, low: int, high: int) -> str:
    bound = f">= {low}" if number < low else f"<= {high}"
    return f"{named(name, number)} must be {bound}"


def _decimal(name: str, value: object) -> Decimal:
    if isinstance(value, Decimal):
        return value
    if type(value) is int:
        return Decimal(value)
    text = value.strip() if isinstance(value, str) else ""
    if len(text) > _DECIMAL_CHARACTERS or not _DECIMAL.fullmatch(text):
        raise RowError(f"{named(name, value)} must be a finite number >= 0")
    return Decimal(text)


def prefix_ids(name: str, value: object) -> list[int]:
    """A list of unsigned 64-bit ids: a JSON array, or text of numbers between spaces."""
    if isinstance(value, str):
        return [whole_number(name, text, 0, MAX_ID) for text in value.split()]
    if not isinstance(value, list):
        raise RowError(f"{named(name, value)} must be a list of integers")
    if value and (set(map(type, value)) != {int} or not 0 <= min(value) <= max(value) <= MAX_ID):
        return [whole_number(name, item, 0, MAX_ID) for item in value]  # says which one is wrong
    return value
