"""Which column of a generic file is what, and whether a file's names fit."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from workloads.config import Config, did_you_mean, wrong
from workloads.reading.csv_rows import missing_columns
from workloads.reading.errors import RowError, label, listed
from workloads.reading.values import TimeUnit

REQUIRED: Final = ("arrival", "prompt_tokens", "output_tokens")
ROLES: Final = (
    *("arrival", "prompt_tokens", "output_tokens", "max_tokens", "request_id", "priority", "client"),
    *("queue_timeout", "timeout", "cancel_after", "prefix_ids", "prefix_group_tokens"),
)
_NEAR_RATIO: Final = 0.85
"""How alike (0-1, difflib) a name must be to be a slip of ours: `input_tokens` is none of `output_tokens`."""


Name = Annotated[str, Field(min_length=1)]


class GenericColumns(Config):
    """Names a generic file's columns. What is left out has our own name (`arrival_s`, `prompt_tokens`, ...).

    Columns named here must exist; of ours, only arrival, prompt_tokens and output_tokens must.
    """

    time_unit: TimeUnit = "s"
    """Of every time column. It also ends our own names: `arrival_ms`, `timeout_ms` with "ms"."""
    relative_to_first: bool = False
    """Arrivals are wall-clock times: the first request's becomes 0. Otherwise they are offsets and stay."""
    arrival: Name | None = None
    prompt_tokens: Name = "prompt_tokens"
    output_tokens: Name = "output_tokens"
    max_tokens: Name = "max_tokens"
    request_id: Name = "request_id"
    priority: Name = "priority"
    client: Name = "client"
    queue_timeout: Name | None = None
    timeout: Name | None = None
    cancel_after: Name | None = None
    prefix_ids: Name = "prefix_ids"
    """In CSV: numbers between spaces. In JSONL: an array."""
    prefix_group_tokens: Name = "prefix_group_tokens"
    """The column that says how many tokens stand behind each prefix id (the same number in every row)."""
    group_tokens: int | None = Field(default=None, ge=1)
    """That number, for files without such a column."""
    ignore: tuple[str, ...] = ()
    """Columns to leave alone although their names resemble ours."""

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        roles: dict[str, str] = {}
        for role, name in self.names().items():
            if roles.setdefault(name, role) != role:
                raise wrong(f"{role} must not be {name!r}, as {roles[name]} is")
        return self

    def names(self) -> dict[str, str]:
        """Role -> column name, for every role."""
        return {role: getattr(self, role) or f"{role}_{self.time_unit}" for role in ROLES}

    def declared(self) -> dict[str, str]:
        """Role -> column name, for the roles that were named explicitly."""
        return {
            role: name for role, name in self.names().items() if getattr(self, role) and role in self.model_fields_set
        }


class NameCheck:
    """Compares a file's column names with those that we look for."""

    def __init__(self, columns: GenericColumns) -> None:
        self._names = columns.names()
        self._declared = columns.declared()
        self._left_alone = {*self._names.values(), *columns.ignore}

    def require(self, existing: Sequence[str]) -> None:
        """`RowError` where arrival, prompt or output tokens are missing."""
        self.require_declared(existing, REQUIRED)
        if problem := missing_columns([self._names[role] for role in REQUIRED], existing):
            raise RowError(problem)

    def require_declared(self, existing: Sequence[str], roles: Iterable[str] = ROLES) -> None:
        """`RowError` where a column that was named explicitly is missing."""
        for role in roles:
            name = self._declared.get(role)
            if name is not None and name not in existing:
                raise RowError(
                    f"column {name!r}, declared as {role}, must exist; "
                    f"the file has: {listed(existing)}{did_you_mean(name, existing)}"
                )

    def refuse_slips(self, names: Iterable[str], existing: Sequence[str]) -> None:
        """`RowError` where a name that we do not read looks like one of ours that the file lacks."""
        absent = [name for name in self._names.values() if name not in existing]
        for name in names:
            if name in self._left_alone:
                continue
            if close := difflib.get_close_matches(_plain(name), absent, n=1, cutoff=_NEAR_RATIO):
                raise RowError(
                    f"column {label(name)!r} is not read; did you mean {close[0]!r}? "
                    f"(GenericColumns names columns, and leaves alone those in its `ignore`)"
                )


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")[:100]
