"""What the options of commands mean: texts from the command line as parts of a scenario's description."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sim.commands.errors import wrong_use
from sim.commands.flags import engine_flags
from sim.scenario import read_scenario
from workloads.bundled import bundled_names


def check_out(out: Path, force: bool) -> None:
    """Before anything runs: may the report go there?"""
    from sim.results.report import why_not

    why = why_not(out, force=force)
    if why is not None:
        raise wrong_use(f"--out {out}: {why}")
    if out.absolute().parent.exists() and not os.access(out.absolute().parent, os.W_OK):
        raise wrong_use(f"--out {out}: {out.absolute().parent} is not writable")


def base_description(path: Path | None, allow_plugins: bool) -> dict[str, Any]:
    """A scenario file as plain data, to put options on top of; empty without one."""
    if path is None:
        return {}
    return read_scenario(path, allow_plugins=allow_plugins).model_dump(mode="json", exclude_unset=True)


def workload(trace: str, reading: dict[str, Any]) -> dict[str, Any]:
    """A trace file, or a bundled trace by its name. `reading`: options for files."""
    if trace in bundled_names() and not Path(trace).exists():
        if given(reading):
            raise wrong_use(f"--{next(iter(given(reading))).replace('_', '-')} is for trace files, not bundled traces")
        return {"kind": "bundled", "name": trace}
    return {"kind": "trace", "path": trace, **given(reading)}


def choose_cost(description: dict[str, Any], profile: str | None, cost: str | None) -> None:
    """Put the cost model that options ask for into a description."""
    if profile is not None and cost is not None:
        raise wrong_use("--profile and --cost exclude each other")
    if profile is not None:
        description["cost"] = {"kind": "profile", "name": profile}
    elif cost is not None:
        description["cost"] = from_json("--cost", cost)


def choose_engine(description: dict[str, Any], engine: str | None, arguments: list[str]) -> None:
    """Engine flags go on top of a scenario's, unless another preset is asked for."""
    before = description.get("engine", {})
    preset = engine or before.get("preset", "vllm-v1")
    kept = before if preset == before.get("preset") else {}
    description["engine"] = {**kept, "preset": preset, **engine_flags(preset, arguments)}


def policy(kind: str, text: str) -> dict[str, Any]:
    """`optimistic:watermark_blocks=3` or `./mine.py:Mine:alpha=1` -> name and parameters (JSON where they can be)."""
    file, in_file, rest = text.rpartition(".py:")
    name, *pairs = (rest if in_file else text).split(":")
    name = file + in_file + name
    parameters = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise wrong_use(f"--{kind} {text}: expected parameter=value, got {pair!r}")
        parameters[key] = value_of(value)
    return {"name": name, "parameters": parameters}


def targets(texts: list[str]) -> dict[str, float]:
    """`ttft=2` texts as the fields of a scenario's `slo`."""
    targets: dict[str, float] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if key not in ("ttft", "tpot", "e2e") or not equals:
            raise wrong_use(f"--slo {text}: must be ttft=SECONDS, tpot=SECONDS or e2e=SECONDS")
        if f"{key}_s" in targets:
            raise wrong_use(f"--slo {text}: {key} was given before")
        try:
            targets[f"{key}_s"] = float(value)
        except ValueError:
            raise wrong_use(f"--slo {text}: {value!r} is not a number of seconds") from None
    return targets


def from_json(option: str, text: str | None) -> Any:
    """The JSON value of an option."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise wrong_use(f"{option}: not JSON: {error}") from None


def json_or_file(option: str, text: str | None) -> Any:
    """Text that begins like a list is one, any other is the name of a file."""
    if text is None or text.lstrip().startswith("["):
        return from_json(option, text)
    return from_json(f"{option} {text}", Path(text).read_text(encoding="utf-8"))


def value_of(text: str) -> Any:
    """JSON where it is some, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def given(values: dict[str, Any]) -> dict[str, Any]:
    """Those that are not None."""
    return {key: value for key, value in values.items() if value is not None}
