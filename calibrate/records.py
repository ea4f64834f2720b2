"""The samples file (`tokenwork-samples/1`, JSON lines): what was run, on what, and every raw time.

Line 1 describes the run; each further line is one task. A task may come several times: repeats later in the run show
how far the machine's speed drifts, which samples taken back to back cannot. No torch here: the fit reads this too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, BinaryIO, Final, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from calibrate.tasks import TaskSpec, json_line
from costmodel.specs import ModelSpec

__all__ = ["Header", "Measurement", "SamplesError", "SamplesFile", "SamplesWriter", "TaskSpec", "read_samples"]

SCHEMA: Final = "tokenwork-samples/1"
SCHEMA_NAME, SCHEMA_VERSION = "tokenwork-samples", 1
MAX_LINE_BYTES = 4 << 20

OUTCOMES: Final = ("ok", "oom", "failed")
Outcome = Literal["ok", "oom", "failed"]
ClockKind = Literal["monotonic", "process_cpu", "cuda_events"]
Kernels = Literal["flashinfer", "flex", "sdpa", "plain"]


class SamplesError(ValueError):
    """A samples file that is unreadable, not understood, or not what a run would go on with. Says file and line."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DeviceInfo(_Part):
    name: str
    kind: Literal["cpu", "cuda"]
    driver: str | None = None
    memory_bytes: PositiveInt
    threads: PositiveInt | None = None
    """Of the compute library, on the CPU."""
    clock: ClockKind = "monotonic"
    """`process_cpu`: CPU time of this process, which on a shared core leaves out what neighbours used."""
    clocks_mhz: dict[str, float] = {}
    """As the system told at the start; they change by themselves, so two runs may differ here."""


class SoftwareInfo(_Part):
    python: str
    torch: str
    kernels: Kernels
    """Who computed the attention."""
    kernels_version: str | None = None
    """Of the package they come from, where that is not torch."""


class Header(_Part):
    """Line 1 of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)

    # "schema" on the wire; pydantic has a method of that name
    schema_name: Annotated[Literal["tokenwork-samples/1"], Field(alias="schema")] = SCHEMA
    device: DeviceInfo
    software: SoftwareInfo
    model: ModelSpec
    dtype: str
    block_tokens: PositiveInt
    created: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    seed: NonNegativeInt
    minutes: PositiveFloat
    """The time given when the file was begun; a longer run may have gone on with it."""

    def difference(self, other: Header) -> str | None:
        """The first thing that keeps samples of the two apart, with both values; None if they go together.

        Not compared: when, how long, the seed of the order, and momentary clocks.
        """
        mine, theirs = _checked(self), _checked(other)
        for name, value in mine.items():
            if value != theirs[name]:
                return f"{name} is {value!r} in one and {theirs[name]!r} in the other"
        return None

    def to_line(self) -> str:
        return json_line(self.model_dump(mode="json", by_alias=True))


def _checked(header: Header) -> dict[str, Any]:
    raw = header.model_dump(mode="json", exclude={"created": True, "minutes": True, "seed": True})
    del raw["device"]["clocks_mhz"]
    groups = ("device", "software", "model")
    flat = {f"{group}.{name}": value for group in groups for name, value in raw.pop(group).items()}
    return flat | raw


@dataclass(frozen=True, slots=True)
class Measurement:
    """One task's raw samples, or why there are none."""

    task: TaskSpec
    seconds: tuple[float, ...] = ()
    """Each the time of one execution, or the mean over a short block of them where one is too short to time."""
    outcome: Outcome = "ok"
    reason: str = ""
    spent_s: float = 0.0
    """Wall-clock time of the whole measurement, warm-up included: what the budget of the run is charged."""

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"unknown outcome {self.outcome!r}: known are {', '.join(OUTCOMES)}")
        times = (*self.seconds, self.spent_s)
        if not all(isinstance(s, int | float) and not isinstance(s, bool) and 0 <= s < float("inf") for s in times):
            raise ValueError("seconds must be finite numbers >= 0")
        if (self.outcome == "ok") != bool(self.seconds) or any(s == 0 for s in self.seconds):
            raise ValueError(f"outcome {self.outcome!r} with {len(self.seconds)} samples: ok needs some, each > 0")

    @property
    def median_s(self) -> float:
        return float(np.median(self.seconds))

    @property
    def iqr_s(self) -> float:
        """Between the quartiles (linear interpolation)."""
        low, high = np.percentile(self.seconds, (25, 75))
        return float(high - low)

    @property
    def noise_ratio(self) -> float:
        """Interquartile range over median."""
        return self.iqr_s / self.median_s

    def to_line(self) -> str:
        raw: dict[str, Any] = {"task": self.task.as_json(), "outcome": self.outcome, "seconds": self.seconds}
        if self.reason:
            raw["reason"] = self.reason
        return json_line(raw | {"spent_s": round(self.spent_s, 6)})

    @classmethod
    def from_json(cls, raw: object) -> Self:
        if not isinstance(raw, dict):
            raise ValueError(f"must be an object, got {raw!r:.80}")
        unknown = [name for name in raw if name not in ("task", "outcome", "seconds", "reason", "spent_s")]
        if unknown:
            raise ValueError(f"unknown field {unknown[0]!r}: allowed are task, outcome, seconds, reason, spent_s")
        seconds, reason = raw.get("seconds"), raw.get("reason", "")
        if not isinstance(seconds, list) or not isinstance(reason, str):
            raise ValueError("seconds must be a list of numbers, and reason text")
        task = TaskSpec.from_json(raw.get("task"))
        return cls(task, tuple(seconds), raw.get("outcome", "?"), reason, raw.get("spent_s", 0.0))


@dataclass(frozen=True, slots=True)
class SamplesFile:
    header: Header
    measurements: tuple[Measurement, ...]


def read_samples(path: Path) -> SamplesFile:
    """A whole samples file. A last line without its end, as an interruption may leave it, is not counted."""
    with path.open("rb") as file:
        lines = _numbered(file, path.name)
        try:
            number, first = next(lines)
        except StopIteration:
            raise SamplesError(f"{path.name}: is empty, line 1 must be the header of a samples file") from None
        header = _parse_header(first, f"{path.name}:{number}")
        return SamplesFile(header, tuple(_measurement(raw, f"{path.name}:{number}") for number, raw in lines))


def _measurement(raw: object, place: str) -> Measurement:
    try:
        return Measurement.from_json(raw)
    except (ValueError, TypeError) as error:
        raise SamplesError(f"{place}: {error}") from None


def _numbered(file: BinaryIO, name: str) -> Iterator[tuple[int, object]]:
    """Every complete line as JSON, with its number."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if not line.endswith(b"\n"):
            if len(line) > MAX_LINE_BYTES:
                raise SamplesError(f"{name}:{number}: line is longer than {MAX_LINE_BYTES} bytes")
            return
        try:
            yield number, json.loads(line, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise SamplesError(f"{name}:{number}: not JSON: {error}") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a measurement")


def _parse_header(raw: object, place: str) -> Header:
    schema = raw.get("schema") if isinstance(raw, dict) else None
    name, _, version = str(schema).partition("/")
    if name != SCHEMA_NAME:
        raise SamplesError(f"{place}: not a samples file: schema is {schema!r:.80}, must be {SCHEMA!r}")
    if version.isdecimal() and int(version) > SCHEMA_VERSION:
        raise SamplesError(f"{place}: {schema!r} is newer than this program knows ({SCHEMA!r}): update tokenwork")
    try:
        return Header.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        raise SamplesError(f"{place}: header: {where}: {first['msg']}") from None


class SamplesWriter:
    """Appends to a samples file, a whole line at a time, so that whatever ends the run leaves a valid file.

    Begins the file, or goes on with one of the same device, software, model and dtype; `found` is what it holds.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.found: tuple[Measurement, ...] = ()
        begun = path.exists() and _cut_to_whole_lines(path)
        if begun:
            present = read_samples(path)
            difference = present.header.difference(header)
            if present.header.seed != header.seed:
                difference = f"seed is {present.header.seed} in one and {header.seed} in the other"
            if difference:
                raise SamplesError(f"{path.name}:1: cannot go on with this file: {difference}")
            self.found = present.measurements
        self._file = path.open("ab", buffering=0)
        if not begun:
            self._append(header.to_line())

    def append(self, measurement: Measurement) -> None:
        self._append(measurement.to_line())

    def _append(self, line: str) -> None:
        self._file.write(line.encode() + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _cut_to_whole_lines(path: Path) -> int:
    """Drop what an interruption left of a last line. Returns the bytes that stay."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
    return whole
