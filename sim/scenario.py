"""The description of a run: workload, initial state, engine, policies, cost model, targets, limits, seed.

One frozen object, the same from a TOML or JSON file, from the command line and from Python; results carry it whole.
Building one never touches the disk: traces and profiles are read by `sim.replay`.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, ValidationError, model_validator

from costmodel.config import CostModelConfig, ProfileConfig
from sim.capacity import CapacityEvents
from sim.engines import EngineConfig, VllmV1, engine_config
from sim.foreign import found_from, policies_in_files
from sim.policies.registry import UnknownName
from workloads.config import Config, problems, wrong
from workloads.formats import GenericColumns
from workloads.max_tokens import MaxTokensRule
from workloads.synthetic import SyntheticConfig

DEFAULT_PROFILE = "h100-llama-3.1-8b-bf16"

Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Target = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ScenarioError(ValueError):
    """A description that makes no sense; the text says where, what and what is allowed."""


# -- workload


class TraceFile(Config):
    """Requests from a file; its format is found by looking into it."""

    kind: Literal["trace"] = "trace"
    path: str
    format: str | None = None
    columns: GenericColumns | None = None
    """Which columns of a generic CSV or JSONL mean what, and in which unit."""
    on_bad_row: Literal["error", "skip"] = "error"
    sort: bool = False
    sha256: str | None = None
    """Of the file's bytes; a file with others is refused. Results fill it in."""


class Bundled(Config):
    """A synthetic trace that comes with tokenwork."""

    kind: Literal["bundled"] = "bundled"
    name: str = "chat-1k"


class Synthetic(SyntheticConfig):
    """A recipe (workloads.synthetic), drawn with the scenario's seed."""

    kind: Literal["synthetic"] = "synthetic"


class InlineRequest(Config):
    """One request, written out."""

    id: str | None = None
    arrival_s: Seconds = 0.0
    prompt_tokens: Tokens
    output_tokens: Tokens
    """The truth: how long the answer turns out to be."""
    max_tokens: Tokens | None = None
    priority: int = 0
    client: str = ""
    queue_timeout_s: Seconds | None = None
    timeout_s: Seconds | None = None
    cancel_after_s: Seconds | None = None
    prefix_ids: tuple[int, ...] = ()
    """Ids of the prompt's leading groups of `prefix_group_tokens`; equal beginnings are shared."""


class Inline(Config):
    """Requests written out, in order of arrival."""

    kind: Literal["inline"] = "inline"
    requests: tuple[InlineRequest, ...]
    prefix_group_tokens: Tokens = 16

    @model_validator(mode="after")
    def _ids_once(self) -> Self:
        ids = [row.id for row in self.requests if row.id is not None]
        twice = next((each for each in ids if ids.count(each) > 1), None)
        if twice is not None:
            raise wrong(f"requests have the id {twice!r} twice")
        return self

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for before, after in zip(self.requests, self.requests[1:], strict=False):
            if after.arrival_s < before.arrival_s:
                raise wrong(f"requests must be in order of arrival, got {before.arrival_s} before {after.arrival_s}")
        return self


Workload = Annotated[TraceFile | Bundled | Synthetic | Inline, Field(discriminator="kind")]


# -- initial state


class InitialRequest(Config):
    """A request that is running when the run begins."""

    id: str
    prompt_tokens: Tokens
    computed_tokens: int = Field(ge=0)
    """KV entries it has."""
    output_tokens: int = Field(default=0, ge=0)
    """Tokens it has emitted before."""
    remaining_output_tokens: Tokens
    """The truth: tokens still to come."""
    max_tokens: Tokens | None = None
    priority: int = 0
    client: str = ""
    prefix_ids: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _mid_way(self) -> Self:
        known = self.prompt_tokens + self.output_tokens
        if self.computed_tokens > known:
            raise wrong(f"computed_tokens must be <= {known} (prompt + output), got {self.computed_tokens}")
        return self


class CachedPrefix(Config):
    """Blocks in the prefix cache that nobody references when the run begins."""

    prefix_ids: tuple[int, ...] = Field(min_length=1)
    tokens: Tokens
    """How many tokens of it are cached."""


class InitialState(Config):
    running: tuple[InitialRequest, ...] = ()
    """In list order: first admitted first."""
    cached: tuple[CachedPrefix, ...] = ()
    """In order of release: the first is evicted first."""


# -- engine and policies


def _engine(value: Any) -> Any:
    """{"preset": "vllm-v1", flag: value, ...} -> that preset's config."""
    if isinstance(value, EngineConfig):
        return value
    if isinstance(value, str):
        value = {"preset": value}
    if not isinstance(value, dict):
        raise ValueError(f"must be a preset's name or a table of its flags, got {value!r}")
    flags = dict(value)
    name = flags.pop("preset", VllmV1.preset)
    return engine_config(name, flags)


def _dump_engine(config: EngineConfig) -> dict[str, Any]:
    return {"preset": config.preset, **config.model_dump(mode="json")}


Engine = Annotated[EngineConfig, BeforeValidator(_engine), PlainSerializer(_dump_engine)]


def _choice(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class PolicyChoice(Config):
    """A policy in place of the preset's own."""

    name: str
    """As `tokenwork list` shows it, or FILE.py:CLASS."""
    parameters: dict[str, Any] = Field(default={})
    sha256: str | None = None
    """Of FILE.py; other content is refused. Results fill it in."""


Choice = Annotated[PolicyChoice, BeforeValidator(_choice)]


class Policies(Config):
    """What replaces the preset's own policies; None keeps them."""

    order: Choice | None = None
    admission: Choice | None = None
    budget: Choice | None = None
    preemption: Choice | None = None
    eviction: Choice | None = None
    """For engines whose prefix cache is a tree."""


class Front(Config):
    """Limits on what may be inside the engine, for whoever arrives; None is no limit (`sim.core.front`)."""

    max_in_flight: Count | None = None
    """Requests that wait, run or are swapped (vLLM max_num_queued_reqs, TGI max_concurrent_requests)."""
    max_waiting: Count | None = None
    """Requests in the engine's own queue (SGLang max_queued_requests)."""
    max_waiting_tokens: Count | None = None
    """Their prompt tokens."""
    overflow: Literal["reject", "queue"] = "reject"
    """Whoever finds no room is refused at once, or waits outside."""


class Targets(Config):
    """Service level objectives per request; equality passes."""

    ttft_s: Target | None = None
    tpot_s: Target | None = None
    e2e_s: Target | None = None


class Scenario(Config):
    """Everything that determines a run. Same scenario, same bytes."""

    name: str = ""
    workload: Workload
    limit: Annotated[int, Field(ge=1)] | None = None
    """Only the first arrivals."""
    rate_scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Arrival gaps are divided by it; lengths and timeouts stay."""
    max_tokens_from: str = "model_len"
    """For requests that name no max_tokens: model_len | fixed:N | factor:F | true."""
    initial: InitialState = InitialState()
    engine: Engine = VllmV1()
    policies: Policies = Policies()
    front: Front | None = None
    """In place of the preset's own; None keeps that."""
    cost: CostModelConfig = ProfileConfig(name=DEFAULT_PROFILE)
    capacity_events: CapacityEvents = ()
    """Memory that jitters, in order of time; a pair (at_s, blocks) will do."""
    slo: Targets = Targets()
    max_sim_time_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_steps: Annotated[int, Field(ge=1)] | None = None
    host_blocks: Count | None = None
    """Blocks of the host's memory for swapped KV, for preemption policies that swap; None = the preset's own."""
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _rule(self) -> Self:
        try:
            MaxTokensRule.of(self.max_tokens_from)
        except ValueError as error:
            raise wrong(f"max_tokens_from: {error}") from None
        return self


def make_scenario(description: dict[str, Any], *, place: str = "scenario") -> Scenario:
    """A Scenario from plain data. Raises ScenarioError with one line per problem."""
    try:
        return Scenario.model_validate(description)
    except ValidationError as error:
        raise ScenarioError("; ".join(f"{place}: {line}" for line in problems(error, Scenario.model_fields))) from None
    except UnknownName as error:
        raise ScenarioError(f"{place}: {error}") from None


def read_scenario(path: Path, *, allow_plugins: bool = False) -> Scenario:
    """A Scenario from a .toml or .json file. Relative paths of traces and policies count from the file's folder.

    `allow_plugins`: it may name policies in Python files, which are run.
    Raises ScenarioError, or OSError for a missing file.
    """
    text = path.read_text(encoding="utf-8")
    try:
        description = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise ScenarioError(f"{path.name}: {error}") from None
    if not isinstance(description, dict):
        raise ScenarioError(f"{path.name}: a scenario is a table of settings")
    workload = description.get("workload")
    if isinstance(workload, dict) and isinstance(workload.get("path"), str):
        workload["path"] = str(path.parent / workload["path"])
    scenario = make_scenario(description, place=path.name)
    for kind, choice in policies_in_files(scenario.policies).items():
        if not allow_plugins:
            raise ScenarioError(
                f"{path.name}: policies.{kind}: {choice.name} is code, which a scenario file may run only with "
                "--allow-plugins (read_scenario: allow_plugins=True)"
            )
    return scenario.model_copy(update={"policies": found_from(scenario.policies, path.parent)})
