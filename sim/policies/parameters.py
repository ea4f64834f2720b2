"""Parameters of a policy: read off its constructor, and values checked against their types."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from inspect import Parameter, signature
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from sim.policies.unknown import UnknownName


def parameters_of(maker: Callable[..., Any]) -> dict[str, Parameter]:
    """By name, in order; what a constructor takes as `*args` or `**kwargs` is not a parameter."""
    variable = (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
    return {name: each for name, each in signature(maker).parameters.items() if each.kind not in variable}


def types_of(maker: Callable[..., Any]) -> dict[str, Any]:
    """The declared type of each parameter, where it can be found: some are imported for type checkers only."""
    init = getattr(maker, "__init__", maker)
    known = getattr(init, "__globals__", {})
    types: dict[str, Any] = {}
    for name, annotation in getattr(init, "__annotations__", {}).items():
        with suppress(NameError, TypeError, SyntaxError):
            types |= get_type_hints(SimpleNamespace(__annotations__={name: annotation}), known)
    return types


def checked(maker: Callable[..., Any], what: str, values: dict[str, Any]) -> dict[str, Any]:
    """The values as their types want them. Raises UnknownName for a parameter too many or too few, ValueError."""
    accepted = parameters_of(maker)
    for key in values:
        if key not in accepted:
            raise UnknownName(f"{what} has no parameter {key!r}: it has {', '.join(accepted) or 'none'}")
    for key, parameter in accepted.items():
        if parameter.default is parameter.empty and key not in values:
            raise UnknownName(f"{what} needs {key}")
    types = types_of(maker)
    return {key: as_type(key, value, types.get(key)) for key, value in values.items()}


def as_type(name: str, value: Any, wanted: Any) -> Any:
    """A value as its type wants it; types beyond these are the policy's own to check. Raises ValueError."""
    choices = get_args(wanted)
    if get_origin(wanted) is Literal:
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")
        return value
    if get_origin(wanted) in (Union, UnionType):
        inner = [each for each in choices if each is not NoneType]
        if value is None and len(inner) < len(choices):
            return None
        return as_type(name, value, inner[0]) if len(inner) == 1 else value
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if wanted in _WORDS and not _is(value, wanted):
        raise ValueError(f"{name} must be {_WORDS[wanted]}, got {value!r}")
    return value


_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def _is(value: Any, wanted: type) -> bool:
    if isinstance(value, bool):
        return wanted is bool
    return isinstance(value, wanted) and not (isinstance(value, float) and math.isnan(value))


def type_words(wanted: Any) -> str:
    """A type as users write its values: `int`, `float | none`, `recompute | swap`."""
    if get_origin(wanted) is Annotated:
        return type_words(get_args(wanted)[0])
    if get_origin(wanted) is Literal:
        return " | ".join(map(str, get_args(wanted)))
    if get_origin(wanted) in (Union, UnionType):
        return " | ".join(type_words(each) for each in get_args(wanted))
    if wanted is NoneType:
        return "none"
    return getattr(wanted, "__name__", str(wanted))
