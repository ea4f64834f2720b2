"""Profiles: calibrated weights as readable JSON with where they came from and how wrong they are."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from statistics import harmonic_mean
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveInt, ValidationError, model_validator

from costmodel.features import Feature
from costmodel.names import known_names
from costmodel.specs import BF16_BYTES, ModelSpec, model_spec
from costmodel.token_weights import Term, ValidRange

SCHEMA_VERSION: Final = 2
"""2 added to 1: the model's shapes, kinds of evidence, priors, intervals, noise, warnings, rates; pools may be None."""
SMALLEST_STEP_S = 1e-9
"""The clock counts nanoseconds, and every step takes time."""


class ProfileError(ValueError):
    """A profile that is unknown, unreadable or not understood."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Origin = Literal["fitted", "assumed", "derived", "prior"]
"""Fitted to steps, assumed (a stated constant), derived from other weights, or a prior: what nominal numbers of device
and model say where the evidence says nothing."""
Evidence = Literal["operator tables", "samples", "engine step log", "aggregated step log", "bench result"]


class Weight(_Part):
    """Seconds per unit of a feature."""

    quantity: str
    past: int = 0
    past_each: int = 0
    s_per_unit: NonNegativeFloat
    part: str
    """What the seconds are spent on: the key in a prediction's parts."""
    origin: Origin
    low_s_per_unit: NonNegativeFloat | None = None
    high_s_per_unit: NonNegativeFloat | None = None
    """Where the evidence is thin: what it also agrees with."""

    def term(self) -> Term:
        feature = Feature(self.quantity, self.past, self.past_each)
        return Term(feature, self.s_per_unit, self.part)


class InputFile(_Part):
    path: str
    """Below the data set's root."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    num_steps: PositiveInt | None = None
    """How many of its steps the fit saw; None for tables of operators."""


class Provenance(_Part):
    """What the fit saw, and nothing else."""

    evidence: Evidence = "operator tables"
    dataset: str
    source: str
    """Where the data set is published, or what recorded it."""
    commit: str = ""
    licence: str = ""
    files: tuple[InputFile, ...]
    method: str


class Range(_Part):
    """What the fit has seen."""

    max_decode_requests: PositiveInt
    max_prefill_tokens: PositiveInt
    max_context_tokens: PositiveInt
    max_decode_kv_tokens: PositiveInt
    verification: bool


class Reference(_Part):
    """Where token-work is measured: see costmodel/work.py."""

    decode_requests: PositiveInt
    context_tokens: PositiveInt
    prefill_chunk_tokens: PositiveInt
    verify_width: Annotated[int, Field(ge=2)]


class RegionError(_Part):
    """Relative errors (predicted - given) / given over the steps of a region; given: measured or composed."""

    region: str
    num_steps: PositiveInt
    mape_ratio: float
    median_ratio: float
    """Median of the absolute errors."""
    p90_ratio: float
    worst_ratio: float
    bias_ratio: float
    """Mean of the signed errors: positive is too slow."""


class MemoryItem(_Part):
    """A line of the pool's arithmetic."""

    what: str
    num_bytes: int
    """Positive adds to the pool, negative takes from it."""
    source: str


class KvPool(_Part):
    """How many KV blocks the device has room for, line by line."""

    num_blocks: PositiveInt
    block_tokens: PositiveInt
    bytes_per_token: PositiveInt
    arithmetic: tuple[MemoryItem, ...]

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        fits = sum(item.num_bytes for item in self.arithmetic) // (self.block_tokens * self.bytes_per_token)
        if fits != self.num_blocks:
            raise ValueError(f"num_blocks is {self.num_blocks}, but the arithmetic leaves room for {fits}")
        return self


class Rate(_Part):
    """Something measured beside the steps: a bandwidth, a latency."""

    what: str
    value: NonNegativeFloat
    unit: str
    noise_ratio: NonNegativeFloat
    """Interquartile range over median of its samples."""


class Profile(_Part):
    """A calibrated token-weights model with its evidence."""

    schema_version: Literal[1, 2]
    name: str
    device: str
    model: str
    model_shape: ModelSpec | None = None
    """None: `model` is a name in costmodel/specs.py."""
    dtype: str
    tensor_parallel: PositiveInt
    engine: str
    provenance: Provenance
    weights: tuple[Weight, ...]
    valid_range: Range
    reference: Reference
    fit_errors: tuple[RegionError, ...]
    """Weights fitted to all steps, against those steps."""
    held_out_errors: tuple[RegionError, ...]
    """Each region predicted by weights fitted without it. From tables, both are of device time: the host is assumed."""
    noise_floor_ratio: NonNegativeFloat | None = None
    """Mean deviation of single samples from the median of their own step: no prediction of them can be better."""
    warnings: tuple[str, ...] = ()
    worst_steps: tuple[str, ...]
    """Where the fit is furthest off."""
    assumed: tuple[str, ...]
    derived: tuple[str, ...]
    rates: tuple[Rate, ...] = ()
    cuda_graphs: bool = True
    """Whether an engine on this device pads its batches to captured sizes (a CPU does not)."""
    pool: KvPool | None = None
    """None: unknown, the engine's flags must say."""

    @model_validator(mode="after")
    def _every_step_takes_time(self) -> Self:
        host_s = sum(w.s_per_unit for w in self.weights if w.quantity == "steps" and not w.past)
        if host_s < SMALLEST_STEP_S:
            raise ValueError(f"weights of 'steps' must add up to >= {SMALLEST_STEP_S} s, got {host_s}")
        for weight in self.weights:
            weight.term()
        return self

    def shapes(self) -> ModelSpec:
        """Of the model it is for. Raises ProfileError where nobody knows them."""
        try:
            return self.model_shape or model_spec(self.model)
        except ValueError as error:
            raise ProfileError(f"profile {self.name}: {error}, and the profile has no model_shape") from None

    @property
    def kv_tokens(self) -> int | None:
        """KV entries that the device has room for."""
        return self.pool.num_blocks * self.pool.block_tokens if self.pool else None

    @property
    def kv_bytes_per_token(self) -> int:
        """On one of its GPUs, in the dtype that was timed."""
        value_bytes = 4 if self.dtype == "float32" else BF16_BYTES
        return self.shapes().kv_bytes_per_token(value_bytes, self.tensor_parallel)

    @property
    def host_link_bytes_per_s(self) -> float | None:
        """Of a block that goes out and comes back, where both or either were measured."""
        ways = [rate.value for rate in self.rates if rate.what in ("swap_out", "swap_in") and rate.value > 0]
        return harmonic_mean(ways) if ways else None

    def terms(self) -> list[Term]:
        return [weight.term() for weight in self.weights]

    def range(self) -> ValidRange:
        return ValidRange(**self.valid_range.model_dump())

    def to_json(self) -> str:
        return json.dumps(self.model_dump(mode="json", exclude_none=True), indent=2, ensure_ascii=False) + "\n"


def profile_names() -> list[str]:
    """The profiles shipped with the package."""
    files = resources.files("costmodel").joinpath("profiles").iterdir()
    return sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json"))


def load_profile(name_or_path: str) -> Profile:
    """A shipped profile by name, or any by a path that ends in .json."""
    if name_or_path.endswith(".json"):
        try:
            text = Path(name_or_path).read_text(encoding="utf-8")
        except OSError as error:
            raise ProfileError(f"cannot read profile {name_or_path!r}: {error.strerror}") from error
        return parse_profile(text, name_or_path)
    known = profile_names()
    if name_or_path not in known:
        raise ProfileError(
            f"unknown profile {name_or_path!r}: {known_names(name_or_path, known)}; a path must end in .json"
        )
    file = resources.files("costmodel").joinpath("profiles", f"{name_or_path}.json")
    return parse_profile(file.read_text(encoding="utf-8"), name_or_path)


def parse_profile(text: str, place: str) -> Profile:
    """`place` is what error messages call it."""
    try:
        raw: Any = json.loads(text)
    except ValueError as error:
        raise ProfileError(f"{place}: not JSON: {error}") from error
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise ProfileError(
            f"{place}: schema_version {version} is newer than this program knows ({SCHEMA_VERSION}): update tokenwork"
        )
    try:
        return Profile.model_validate(raw)
    except ValidationError as error:
        raise ProfileError(f"{place}: not a profile: {_first_error(error)}") from error


def _first_error(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(step) for step in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]
