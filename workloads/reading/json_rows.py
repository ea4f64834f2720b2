"""One line of JSONL to one object: bounded depth, no NaN, no key twice, fractions kept exact."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, NoReturn

from workloads.reading.errors import RowError, first_twice, label

JsonObject = dict[str, Any]


def json_object(text: str, max_depth: int) -> JsonObject:
    """The object on this line. Fractions come as `Decimal`. `RowError` where there is none."""
    if text.count("[") + text.count("{") > max_depth and _is_deeper(text, max_depth):
        raise RowError(f"JSON must be nested at most {max_depth} deep (json_depth)")
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise RowError(f"must be valid JSON: {error.msg} at character {error.pos + 1}") from None
    except (ValueError, ArithmeticError):  # CPython's limit of digits; an exponent beyond Decimal's
        raise RowError("must be valid JSON: a number has too many digits") from None
    if not isinstance(value, dict):
        raise RowError(f"must be a JSON object, is a {type(value).__name__}")
    return value


def _is_deeper(text: str, max_depth: int) -> bool:
    """Whether brackets outside strings are nested deeper."""
    depth = 0
    in_string = escaped = False
    for character in text:
        if in_string:
            in_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_string = True
        elif character in "[{":
            depth += 1
            if depth > max_depth:
                return True
        elif character in "]}":
            depth -= 1
    return False


def _no_key_twice(pairs: list[tuple[str, Any]]) -> JsonObject:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = first_twice([name for name, _ in pairs])
        raise RowError(f"key {label(twice or '')!r} must not appear twice")
    return value


def _no_constant(text: str) -> NoReturn:
    raise RowError(f"{text} must be a finite number")


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_constant=_no_constant, object_pairs_hook=_no_key_twice)
