"""Recordings on disk: the two forms of a file (tests/golden/FORMAT.md, tests/golden/vllm_v1/FORMAT.md), read alike."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.conformance.recorder import Log

ENDINGS = (".json", ".json.gz")
ORACLE_ENGINE = "vllm-v1"
"""Whose form `sched-oracle/1` is; such a file does not name its engine."""
ORACLE_INPUTS = ("config", "requests", "aborts")


class BadRecording(ValueError):
    """A file that is not a recording, or a broken one."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run of a real scheduler: what went in, what came out."""

    engine: str
    """The recorded engine's name, which is our preset's too."""
    version: str
    """Which sources made the decisions."""
    name: str
    input: dict[str, Any]
    output: Log


@dataclass(frozen=True, slots=True)
class Recording:
    """One file."""

    name: str
    """Of the file, without endings."""
    engine: str
    scenarios: tuple[Scenario, ...]
    is_oracle: bool
    """`sched-oracle/1`, one scenario per file; else `{"engine", "version", "scenarios"}`."""

    def rewritten(self, outputs: dict[str, Log]) -> dict[str, Any]:
        """The file with these outputs by scenario instead of the recorded ones; scenarios without one are left out."""
        kept = [scenario for scenario in self.scenarios if scenario.name in outputs]
        if self.is_oracle:
            (only,) = kept
            return {**only.input, **outputs[only.name]}
        scenarios = {each.name: {"input": each.input, "output": outputs[each.name]} for each in kept}
        return {"engine": self.engine, "version": "tokenwork", "scenarios": scenarios}


def load(path: Path) -> Recording | None:
    """Read a file, gzip or plain; None if it is JSON of another kind. Raises BadRecording."""
    document = _read(path)
    name = path.name.removesuffix(".gz").removesuffix(".json")
    if not isinstance(document, dict):
        return None
    if {*ORACLE_INPUTS, "steps"} <= document.keys():
        return _oracle(name, document)
    if {"engine", "scenarios"} <= document.keys():
        return _collection(path, name, document)
    return None


def load_folder(folder: Path) -> Iterator[Recording]:
    """Every recording of a folder, searched deeply, by path. Raises BadRecording."""
    for path in sorted(path for path in folder.rglob("*") if path.name.endswith(ENDINGS)):
        recording = load(path)
        if recording is not None:
            yield recording


def _read(path: Path) -> Any:
    data = path.read_bytes()
    try:
        return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise BadRecording(f"{path.name}: not JSON: {error}") from None


def _oracle(name: str, document: dict[str, Any]) -> Recording:
    source = document.get("source") or {"package": "tokenwork"}
    scenario = Scenario(
        engine=ORACLE_ENGINE,
        version="==".join(source[key] for key in ("package", "version") if key in source),
        name=name,
        input={key: document[key] for key in ORACLE_INPUTS},
        output={"steps": document["steps"]},
    )
    return Recording(name, ORACLE_ENGINE, (scenario,), is_oracle=True)


def _collection(path: Path, name: str, document: dict[str, Any]) -> Recording:
    engine, version = str(document["engine"]), str(document.get("version", ""))
    scenarios = []
    for scenario, parts in document["scenarios"].items():
        if not isinstance(parts, dict) or not {"input", "output"} <= parts.keys():
            raise BadRecording(f"{path.name}: scenario {scenario}: must have input and output")
        scenarios.append(Scenario(engine, version, scenario, parts["input"], parts["output"]))
    return Recording(name, engine, tuple(scenarios), is_oracle=False)
