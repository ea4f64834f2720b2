"""What is to be compared: a scenario, variants of it, and the workloads, rates and seeds that every variant meets.

`ComparePlan` is the same from a TOML or JSON file, from the command line and from Python; `points` writes it out as
one scenario per run. All variants at one place meet the same requests, so that they can be compared in pairs.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from sim.engines import ENGINES, VllmV1
from sim.foreign import found_from, policies_in_files
from sim.policies.files import is_file, without_folder
from sim.scenario import Count, Policies, Scenario, ScenarioError, make_scenario
from workloads.config import Config, did_you_mean, problems, wrong

Scale = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Table = dict[str, Any]
TAGS = ("preset", "kind")
"""Keys that say what the other keys of a table mean."""
MOST_VARIANTS = 26
"""Each has a letter in tables."""


class ComparePlan(Config):
    """A comparison. The first variant is what the others are compared with."""

    name: str = ""
    scenario: Table
    """What the variants have in common."""
    variants: dict[str, Table] = Field(default={})
    """Name -> what is different: a table of flags goes on top of the scenario's, unless it names another preset or
    kind."""
    vary: dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]] = Field(default={})
    """An engine's flag, a kind of policy or another key of a scenario -> its values; every combination is a variant,
    and of engines that lack the flag, one."""
    workloads: tuple[Table, ...] = ()
    """In place of the scenario's."""
    rate_scales: Annotated[tuple[Scale, ...], Field(min_length=1)] = (1.0,)
    """Arrival gaps are divided by each."""
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Each is a replication: the workload is drawn anew. None: one run with the scenario's seed."""
    blocks: Count | None = None
    """Instead: so many equal pieces of the arrivals' time are the replications; a first piece is cut as warm-up."""

    @model_validator(mode="after")
    def _once(self) -> Self:
        for name, values in (("rate_scales", self.rate_scales), ("seeds", self.seeds)):
            if len(set(values)) < len(values):
                raise wrong(f"{name} must all be different, got {list(values)}")
        if self.blocks is not None and len(self.seeds) > 1:
            raise wrong("blocks must be left out where there are several seeds: each of them is a replication")
        if self.blocks == 1:
            raise wrong("blocks must be >= 2, got 1")
        return self


@dataclass(frozen=True, slots=True)
class Key:
    """One run of a comparison."""

    trace: str
    rate_scale: float
    variant: str
    seed: int


@dataclass(frozen=True, slots=True)
class Point:
    key: Key
    scenario: Scenario


def make_plan(description: Mapping[str, Any], *, place: str = "compare") -> ComparePlan:
    """A plan from plain data. Raises ScenarioError with one line per problem."""
    try:
        return ComparePlan.model_validate(description)
    except ValidationError as error:
        lines = problems(error, ComparePlan.model_fields)
        raise ScenarioError("; ".join(f"{place}: {line}" for line in lines)) from None


def read_plan(path: Path) -> ComparePlan:
    """A plan from a .toml or .json file; relative paths of traces count from its folder. Raises ScenarioError, OSError.

    Policies in Python files are refused or found by `points`.
    """
    text = path.read_text(encoding="utf-8")
    try:
        description = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"{path.name}: {error}") from None
    if not isinstance(description, dict):
        raise ScenarioError(f"{path.name}: a comparison is a table of settings")
    plan = make_plan(description, place=path.name)
    folder = path.parent
    scenario = {**plan.scenario}
    if "workload" in scenario:
        scenario["workload"] = _beside(scenario["workload"], folder)
    return plan.model_copy(
        update={"scenario": scenario, "workloads": tuple(_beside(each, folder) for each in plan.workloads)}
    )


def _beside(workload: Any, folder: Path) -> Any:
    if isinstance(workload, dict) and isinstance(workload.get("path"), str):
        return {**workload, "path": str(folder / workload["path"])}
    return workload


# -- written out


def points(plan: ComparePlan, *, file: Path | None = None, allow_plugins: bool = True) -> list[Point]:
    """Every run, variants of one place next to each other. Raises ScenarioError, UnknownName.

    `file`: where the plan was read from; it may then name policies in Python files only with `allow_plugins`.
    """
    variants = variants_of(plan)
    workloads = _named_workloads(plan)
    found = []
    for trace, scale in product(workloads, plan.rate_scales):
        for name, changes in variants.items():
            description = merged(plan.scenario, changes)
            description |= {} if workloads[trace] is None else {"workload": workloads[trace]}
            description["rate_scale"] = scale * description.get("rate_scale", 1.0)
            scenario = make_scenario(description, place=f"variant {name!r}")
            if file is not None:
                scenario = _from_file(scenario, file, allow_plugins)
            for seed in plan.seeds or (scenario.seed,):
                key = Key(trace, scale, name, seed if plan.seeds else 0)
                found.append(Point(key, scenario.model_copy(update={"seed": seed})))
    _check_seeds(plan, found)
    return found


def _from_file(scenario: Scenario, file: Path, allow_plugins: bool) -> Scenario:
    """With policies found from the file's folder, or refused."""
    if not allow_plugins and (code := next(iter(policies_in_files(scenario.policies).values()), None)):
        raise ScenarioError(f"{file.name}: {code.name} is code, which a file may run only with --allow-plugins")
    return scenario.model_copy(update={"policies": found_from(scenario.policies, file.parent)})


def _check_seeds(plan: ComparePlan, found: list[Point]) -> None:
    fixed = next((each for each in found if each.scenario.workload.kind != "synthetic"), None)
    if len(plan.seeds) > 1 and fixed is not None:
        raise ScenarioError(
            f"seeds: nothing is drawn from a seed with the workload {fixed.key.trace}, all runs would be the same; "
            "blocks make replications out of one trace (--blocks 10)"
        )


def _named_workloads(plan: ComparePlan) -> dict[str, Table | None]:
    """A name for each workload, to be shown; None: the scenario's own."""
    given: list[tuple[Table, Table | None]] = [(each, each) for each in plan.workloads]
    named: dict[str, Table | None] = {}
    for source, workload in given or [(plan.scenario.get("workload", {}), None)]:
        kind = source.get("kind", "") if isinstance(source, dict) else ""
        name = str(Path(source["path"]).name if "path" in source else source.get("name", kind)) if source else ""
        copies = sum(each.split(" #")[0] == name for each in named)
        named[f"{name} #{copies + 1}" if copies else name] = workload
    return named


def merged(scenario: Table, changes: Table) -> Table:
    """Changes on top of a description: tables key by key, unless they name another preset or kind."""
    out = dict(scenario)
    for key, new in changes.items():
        old = out.get(key)
        if key == "engine":
            old, new = _engine_table(old), _engine_table(new)
        same = isinstance(old, dict) and isinstance(new, dict) and not _other_tag(old, new)
        out[key] = {**old, **new} if same and old is not None else new
    return out


def _engine_table(value: Any) -> Any:
    return {"preset": value} if isinstance(value, str) else value


def _other_tag(old: Table, new: Table) -> bool:
    return any(tag in new and new[tag] != old.get(tag) for tag in TAGS)


def variants_of(plan: ComparePlan) -> dict[str, Table]:
    """Name -> changes, `vary` multiplied out. Raises ScenarioError, UnknownName."""
    given = plan.variants or {"": {}}
    found: dict[str, Table] = {}
    settable: set[str] = set()
    for name, changes in given.items():
        preset = _preset(merged(plan.scenario, changes))
        mine = {key: values for key, values in plan.vary.items() if _place(key, preset) is not None}
        settable |= mine.keys()
        for values in product(*mine.values()):
            settings = dict(zip(mine, values, strict=True))
            out = changes
            for key, value in settings.items():
                out = merged(out, _setting(key, value, preset))
            words = [f"{_short(key, plan)}={_words(value)}" for key, value in settings.items()]
            found[" ".join([name, *words] if name else words) or preset] = out
    for key in plan.vary:
        if key not in settable:
            raise ScenarioError(f"vary: {_unknown(key, plan, given)}")
    if len(found) > MOST_VARIANTS:
        raise ScenarioError(f"at most {MOST_VARIANTS} variants can be compared, these are {len(found)}")
    return found


def _short(key: str, plan: ComparePlan) -> str:
    """Without the table's name, unless that tells it from another key."""
    last = key.rpartition(".")[2]
    return last if [each.rpartition(".")[2] for each in plan.vary].count(last) == 1 else key


def _preset(description: Table) -> str:
    engine = _engine_table(description.get("engine", {}))
    return str(engine.get("preset", VllmV1.preset)) if isinstance(engine, dict) else VllmV1.preset


def _place(key: str, preset: str) -> str | None:
    """Which table of a scenario a key belongs to: policies, engine, or the scenario itself (empty); None: nowhere."""
    table, dot, name = key.rpartition(".")
    if dot:
        return table if table in Scenario.model_fields and name else None
    if key in Policies.model_fields:
        return "policies"
    if key in ENGINES.maker(preset).model_fields:  # type: ignore[attr-defined]
        return "engine"
    return "" if key in Scenario.model_fields else None


def _setting(key: str, value: Any, preset: str) -> Table:
    place, name = _place(key, preset), key.rpartition(".")[2]
    return {place: {name: value}} if place else {name: value}


def _unknown(key: str, plan: ComparePlan, given: Mapping[str, Table]) -> str:
    presets = {_preset(merged(plan.scenario, changes)) for changes in given.values()}
    flags = {flag for preset in presets for flag in ENGINES.maker(preset).model_fields}  # type: ignore[attr-defined]
    known = [*sorted(flags), *Policies.model_fields, *Scenario.model_fields]
    return f"{key!r} is no flag of {', '.join(sorted(presets))}, no kind of policy and no key of a scenario" + (
        did_you_mean(key, known)
    )


def _words(value: Any) -> str:
    """A value as it stands in a variant's name."""
    if isinstance(value, dict):
        parameters = value.get("parameters", {})
        rest = parameters if "name" in value else value
        return ":".join([*([_words(value["name"])] if "name" in value else []), *_pairs(rest)])
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, str):
        return without_folder(value) if is_file(value) else Path(value).name if value.endswith(".json") else value
    return f"{value:g}" if isinstance(value, float) else str(value)


def _pairs(table: Table) -> Iterator[str]:
    return (f"{key}={_words(value)}" for key, value in table.items())
