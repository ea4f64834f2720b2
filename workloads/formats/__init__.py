"""Trace dialects, one module each: a new module here that calls `register` is found without any list to edit."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from workloads.reading.errors import TraceError
from workloads.reading.generic_columns import GenericColumns
from workloads.reading.limits import ReadLimits
from workloads.reading.reader import OnBadRow, read_trace
from workloads.reading.registry import format_names

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
__all__ = ["GenericColumns", "OnBadRow", "ReadLimits", "TraceError", "format_names", "read_trace"]
