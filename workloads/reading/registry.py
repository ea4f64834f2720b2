"""The list of trace dialects. A module under `workloads.formats` registers its own when it is imported."""

from __future__ import annotations

from workloads.config import did_you_mean
from workloads.reading.row import Dialect

_DIALECTS: dict[str, Dialect] = {}


def register(dialect: Dialect) -> None:
    """Adds a dialect; a name that is taken is an error."""
    if dialect.name in _DIALECTS:
        raise ValueError(f"trace format {dialect.name!r} is already registered")
    _DIALECTS[dialect.name] = dialect


def format_names() -> tuple[str, ...]:
    """All dialects, sorted."""
    return tuple(sorted(_DIALECTS))


def dialects() -> tuple[Dialect, ...]:
    return tuple(_DIALECTS[name] for name in format_names())


def dialect(name: str) -> Dialect:
    """The dialect of that name; `ValueError` lists what exists."""
    if name not in _DIALECTS:
        raise ValueError(
            f"format must be one of {', '.join(format_names())}, got {name!r}{did_you_mean(name, format_names())}"
        )
    return _DIALECTS[name]
