"""Synthetic traces that come with the package, each `NAME.csv.gz` beside its recipe `NAME.toml`."""

from __future__ import annotations

import gzip
import tomllib
from importlib.resources import as_file, files

from workloads.formats import read_trace
from workloads.synthetic import SyntheticConfig, generate
from workloads.trace import Trace
from workloads.write import csv_lines

_RECIPE, _STORED = ".toml", ".csv.gz"


def bundled_names() -> tuple[str, ...]:
    """Names of the traces, sorted."""
    names = [entry.name for entry in files(__name__).iterdir()]
    return tuple(sorted(name.removesuffix(_RECIPE) for name in names if name.endswith(_RECIPE)))


def bundled_trace(name: str) -> Trace:
    """The stored trace of that name; `ValueError` lists what exists."""
    with as_file(files(__name__) / f"{_known(name)}{_STORED}") as path:
        return read_trace(path)


def recipe(name: str) -> tuple[SyntheticConfig, int]:
    """What the trace was made from: the configuration and the seed."""
    text = (files(__name__) / f"{_known(name)}{_RECIPE}").read_text(encoding="utf-8")
    stated = tomllib.loads(text)
    return SyntheticConfig.model_validate(stated["workload"]), stated["seed"]


def rebuilt(name: str) -> bytes:
    """The stored file made anew from its recipe. Its text is the same everywhere, its packing may differ by zlib."""
    text = "".join(csv_lines(generate(*recipe(name))))
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


def _known(name: str) -> str:
    if name not in bundled_names():
        raise ValueError(f"bundled trace must be one of {', '.join(bundled_names())}, got {name!r}")
    return name
