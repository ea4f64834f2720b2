"""The base of this package's configuration classes: frozen, no unknown keys, errors in one line."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

ERROR_TYPE = "config"
"""The pydantic error type under which a `Config` reports; its `msg` is the finished text."""

_BOUNDS = {
    "greater_than": (">", "gt"),
    "greater_than_equal": (">=", "ge"),
    "less_than": ("<", "lt"),
    "less_than_equal": ("<=", "le"),
}

_PYDANTIC_HEAD = re.compile(r"^\w+ should ")
_PYDANTIC_TAIL = re.compile(r" after validation|, (?:unable|got|not) .*")


class Config(BaseModel):
    """A frozen configuration. Building one never touches the disk.

    A wrong value raises pydantic's `ValidationError` whose message reads `rate_per_s must be > 0, got 0`;
    `problems(error)` gives just those lines.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _in_one_line(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as error:
            raise wrong(*problems(error, cls.model_fields)) from None


def wrong(*lines: str) -> PydanticCustomError:
    """What a `model_validator(mode="after")` raises; each line begins with a key."""
    return PydanticCustomError(ERROR_TYPE, "{problem}", {"problem": "; ".join(lines), "lines": list(lines)})


def problems(error: ValidationError, known: Iterable[str] = ()) -> list[str]:
    """One line for each thing that is wrong; `known` are the keys to suggest in place of an unknown one."""
    return [line for detail in error.errors(include_url=False) for line in _lines(detail, list(known))]


def did_you_mean(name: str, known: Iterable[str], likeness_ratio: float = 0.6) -> str:
    """`; did you mean 'x'?` or nothing where none of the known names is so much alike (0-1, difflib)."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=likeness_ratio)
    return f"; did you mean {close[0]!r}?" if close else ""


def _lines(detail: ErrorDetails, known: list[str]) -> list[str]:
    where, kind, context = _where(detail), detail["type"], detail.get("ctx", {})
    if kind == ERROR_TYPE:
        return [f"{where}.{line}" if where else line for line in context["lines"]]
    if kind in _BOUNDS:
        sign, bound = _BOUNDS[kind]
        return [f"{where} must be {sign} {_number(context[bound])}, got {detail['input']}"]
    if kind == "extra_forbidden":
        hint = ""
        if len(detail["loc"]) == 1:  # deeper down other keys are known
            hint = did_you_mean(where, known) or f"; known: {', '.join(known)}"
        return [f"{where} is not a known key{hint}"]
    if kind == "missing":
        return [f"{where} is missing"]
    if kind == "union_tag_invalid":
        return [f"{where}.kind must be one of {context['expected_tags']}, got {context['tag']!r}"]
    if kind == "union_tag_not_found":
        return [f"{where}.kind is missing"]
    return [_other(where, detail)]


def _other(where: str, detail: ErrorDetails) -> str:
    if detail["type"] == "value_error":  # raised by a field's own validator: the text is finished
        return str(detail["ctx"]["error"])
    must = _PYDANTIC_TAIL.sub("", _PYDANTIC_HEAD.sub("must ", detail["msg"]))
    return f"{where or 'the configuration'} {must}, got {reprlib.repr(detail['input'])}"


def _where(detail: ErrorDetails) -> str:
    path = list(detail["loc"])
    if isinstance(detail["input"], Mapping) and path and path[-1] == detail["input"].get("kind"):
        path.pop()  # a union's tag, not a key
    return ".".join(str(part) for part in path)


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)
