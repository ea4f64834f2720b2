"""From a scenario to a result: read the workload, build the engine, put both on the clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as with_changes
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.config import (
    CostModelConfig,
    LinearConfig,
    ProfileConfig,
    RooflineConfig,
    build_cost_model,
    build_token_work,
)
from costmodel.profile import load_profile
from costmodel.specs import model_spec
from sim.core.cohort import FOREVER
from sim.core.engine import EngineCore
from sim.core.request import Request
from sim.core.spec import EngineSpec
from sim.driver import Arrivals, Limits, Simulation
from sim.engines import UNKNOWN_HARDWARE, Hardware
from sim.kv.content import Content
from sim.policies.registry import REGISTRIES
from sim.results.columns import EngineLog, RequestColumns
from sim.results.run import EngineFacts, RunResult, Slo
from sim.scenario import Bundled, Inline, PolicyChoice, Scenario, ScenarioError, Synthetic, TraceFile
from workloads.bundled import bundled_trace
from workloads.formats import read_trace
from workloads.max_tokens import resolve_max_tokens
from workloads.prefix import PrefixChain
from workloads.select import limit, scale_rate
from workloads.synthetic import generate
from workloads.trace import UNKNOWN, PrefixIds, Trace

NS_PER_S = 1_000_000_000


def replay(
    scenario: Scenario, *, max_stretch: int = FOREVER, progress: Callable[[int, int], None] | None = None
) -> RunResult:
    """Run a scenario to its end (or its limits) and return the books.

    `max_stretch=1` plans every step by itself: slower, and the same result bit for bit (law 12).
    Raises ScenarioError, UnknownName, workloads' TraceError, costmodel's ProfileError, OSError.
    """
    hardware = hardware_of(scenario.cost)
    spec = engine_spec(scenario, hardware)
    chain = PrefixChain()
    trace = with_initial(workload(scenario, spec, chain), scenario)
    columns = RequestColumns(len(trace))
    log = EngineLog(0, columns)
    core = EngineCore(spec, log, max_stretch=max_stretch)
    set_up(core, scenario, chain, columns)
    simulation = Simulation(
        cores=[core],
        costs=[build_cost_model(scenario.cost)],
        logs=[log],
        requests=columns,
        arrivals=_arrivals(trace, core, first_row=len(scenario.initial.running)),
        limits=Limits(_ns(scenario.max_sim_time_s), scenario.max_steps),
        progress=progress,
    )
    outcome = simulation.run()
    core.check_invariants()
    return RunResult(
        scenario=describe(scenario, trace),
        trace=trace,
        requests=columns,
        logs=[log],
        engines=[_facts(core)],
        costs=simulation.costs,
        profile_name=_cost_name(scenario.cost),
        slo=Slo(**scenario.slo.model_dump()),
        outcome=outcome,
        notes=tuple(_notes(scenario, trace)),
        token_work=(build_token_work(scenario.cost),),
    )


# -- the workload


def workload(scenario: Scenario, spec: EngineSpec, chain: PrefixChain) -> Trace:
    """The requests that will arrive, max_tokens filled in. Raises TraceError, ScenarioError, OSError."""
    trace = _requests(scenario, chain)
    if scenario.limit is not None:
        trace = limit(trace, scenario.limit)
    if scenario.rate_scale != 1.0:
        trace = scale_rate(trace, scenario.rate_scale)
    return resolve_max_tokens(trace, scenario.max_tokens_from, max_model_len=spec.max_model_len)


def _requests(scenario: Scenario, chain: PrefixChain) -> Trace:
    source = scenario.workload
    if isinstance(source, TraceFile):
        return _trace_file(source)
    if isinstance(source, Bundled):
        return bundled_trace(source.name)
    if isinstance(source, Synthetic):
        return generate(source, scenario.seed)
    return _inline(source, chain)


def _trace_file(source: TraceFile) -> Trace:
    trace = read_trace(
        source.path, format=source.format, columns=source.columns, on_bad_row=source.on_bad_row, sort=source.sort
    )
    if source.sha256 is not None and source.sha256 != trace.sha256:
        raise ScenarioError(
            f"workload: {trace.name} has sha256 {trace.sha256}, the scenario was made for {source.sha256}"
        )
    return trace


def _inline(source: Inline, chain: PrefixChain) -> Trace:
    rows = source.requests

    def times(name: str) -> Any:
        return np.array([UNKNOWN if getattr(row, name) is None else _ns(getattr(row, name)) for row in rows], np.int64)

    def numbers(name: str) -> Any:
        return np.array([UNKNOWN if getattr(row, name) is None else getattr(row, name) for row in rows], np.int64)

    prefix = PrefixIds(source.prefix_group_tokens, [chain.chained(row.prefix_ids) for row in rows])
    return Trace(
        name="inline",
        format="inline",
        arrival_ns=times("arrival_s"),
        prompt_tokens=numbers("prompt_tokens"),
        output_tokens=numbers("output_tokens"),
        max_tokens=numbers("max_tokens"),
        request_ids=[row.id if row.id is not None else str(at) for at, row in enumerate(rows)],
        priority=numbers("priority"),
        clients=[row.client for row in rows],
        queue_timeout_ns=times("queue_timeout_s"),
        timeout_ns=times("timeout_s"),
        cancel_after_ns=times("cancel_after_s"),
        prefix=prefix if any(row.prefix_ids for row in rows) else None,
    )


def _arrivals(trace: Trace, core: EngineCore, *, first_row: int) -> Arrivals:
    """The trace as the driver wants it: plain lists, requests built when they arrive, from `first_row` on."""

    def column(values: Any) -> list[int] | None:
        return None if values is None else values.tolist()

    arrival_ns, prompts, limits = (c.tolist() for c in (trace.arrival_ns, trace.prompt_tokens, trace.max_tokens))
    ids, priority, clients = trace.request_ids, column(trace.priority), trace.clients
    content = _contents(trace, core)

    def make_request(row: int) -> Request:
        return Request(
            ids[row] if ids is not None else str(row),
            prompt_tokens=prompts[row],
            max_tokens=limits[row],
            arrival_ns=arrival_ns[row],
            priority=priority[row] if priority is not None else 0,
            client=clients[row] if clients is not None else "",
            content=content(row),
            row=row,
        )

    return Arrivals(
        first_row=first_row,
        arrival_ns=arrival_ns,
        make_request=make_request,
        stop_after=trace.output_tokens.tolist(),
        queue_timeout_ns=column(trace.queue_timeout_ns),
        timeout_ns=column(trace.timeout_ns),
        cancel_after_ns=column(trace.cancel_after_ns),
    )


def _contents(trace: Trace, core: EngineCore) -> Callable[[int], Content | None]:
    """What the blocks of each row hold; nothing where no cache asks. Raises ScenarioError on unequal grids."""
    if not core.store.knows_contents:
        return lambda row: None
    prefix, block_tokens = trace.prefix, core.block_tokens
    if prefix is None:
        return lambda row: None
    prompts = trace.prompt_tokens.tolist()
    return lambda row: prompt_content(prefix.ids[row], prefix.group_tokens, prompts[row], block_tokens)


def prompt_content(ids: tuple[int, ...], group_tokens: int, prompt_tokens: int, block_tokens: int) -> Content:
    """Only full engine blocks inside the prompt are shared. Raises ScenarioError if groups are no whole blocks."""
    per_id, rest = divmod(group_tokens, block_tokens)
    if rest:
        raise ScenarioError(
            f"the trace names prefixes by groups of {group_tokens} tokens, which are no whole blocks of "
            f"{block_tokens}: choose a block size that divides {group_tokens}, or switch prefix caching off"
        )
    shared = min(prompt_tokens // block_tokens, len(ids) * per_id)
    return Content(ids, shared_blocks=shared, owner=0, blocks_per_id=per_id)


# -- the engine


def hardware_of(cost: CostModelConfig) -> Hardware:
    """What the cost model knows of its device and model. Raises ProfileError."""
    if isinstance(cost, LinearConfig):
        return UNKNOWN_HARDWARE
    if isinstance(cost, RooflineConfig):
        return Hardware(UNKNOWN_HARDWARE.kv_tokens, model_spec(cost.model).max_model_len)
    profile = load_profile(cost.name)
    return Hardware(profile.pool.num_blocks * profile.pool.block_tokens, model_spec(profile.model).max_model_len)


def engine_spec(scenario: Scenario, hardware: Hardware) -> EngineSpec:
    """The preset with the scenario's policies in place of its own. Raises UnknownName, ScenarioError."""
    spec = scenario.engine.spec(hardware)
    for kind in type(scenario.policies).model_fields:
        choice: PolicyChoice | None = getattr(scenario.policies, kind)
        if choice is not None:
            spec = with_changes(spec, **{kind: _policy(kind, choice, scenario.cost)})
    return spec


def _policy(kind: str, choice: PolicyChoice, cost: CostModelConfig) -> Any:
    parameters = dict(choice.parameters)
    if kind == "budget" and parameters.get("weights") == "calibrated":
        parameters["weights"] = build_token_work(cost)
    try:
        return REGISTRIES[kind].make(choice.name, **parameters)
    except (TypeError, ValueError) as error:
        raise ScenarioError(f"policies.{kind}: {error}") from None


def set_up(core: EngineCore, scenario: Scenario, chain: PrefixChain, columns: RequestColumns) -> None:
    """Put the initial state into an engine. Raises ScenarioError if it does not fit."""
    group_tokens = scenario.workload.prefix_group_tokens if isinstance(scenario.workload, Inline) else 16
    try:
        for cached in scenario.initial.cached:
            ids = chain.chained(cached.prefix_ids)
            content = prompt_content(ids, group_tokens, cached.tokens, core.block_tokens)
            ghost = Request("", prompt_tokens=cached.tokens, max_tokens=1, content=content)
            core.store.seed(ghost, content.shared_blocks)
        for row, given in enumerate(scenario.initial.running):
            shared: Content | None = None
            if core.store.knows_contents:
                ids = chain.chained(given.prefix_ids)
                shared = prompt_content(ids, group_tokens, given.prompt_tokens, core.block_tokens)
            request = Request(
                given.id,
                prompt_tokens=given.prompt_tokens,
                max_tokens=given.max_tokens or core.spec.max_model_len - given.prompt_tokens,
                priority=given.priority,
                client=given.client,
                content=shared,
                row=row,
            )
            columns.engine[row] = 0
            core.place(
                request,
                computed_tokens=given.computed_tokens,
                output_tokens=given.output_tokens,
                stop_after=given.output_tokens + given.remaining_output_tokens,
            )
    except ValueError as error:
        raise ScenarioError(f"initial: {error}") from None


# -- what the result says of itself


def describe(scenario: Scenario, trace: Trace) -> dict[str, Any]:
    """The scenario as plain data, to be handed on: a trace by name and hash, not by path."""
    description = scenario.model_dump(mode="json")
    if isinstance(scenario.workload, TraceFile):
        description["workload"]["path"] = Path(scenario.workload.path).name
        description["workload"]["sha256"] = trace.sha256
    if isinstance(scenario.cost, ProfileConfig):
        description["cost"]["name"] = Path(scenario.cost.name).name
    return description


def with_initial(trace: Trace, scenario: Scenario) -> Trace:
    """The trace with the initially running requests as its first rows; they arrive at 0, and run already."""
    given = scenario.initial.running
    if not given:
        return trace
    zeros = np.zeros(len(given), np.int64)

    def ahead(values: Any, column: Any) -> Any:
        return None if column is None else np.concatenate([np.array(values, np.int64), column])

    unknown = zeros + UNKNOWN
    ids = trace.request_ids or [str(at) for at in range(len(trace))]
    return with_changes(
        trace,
        arrival_ns=ahead(zeros, trace.arrival_ns),
        prompt_tokens=ahead([one.prompt_tokens for one in given], trace.prompt_tokens),
        output_tokens=ahead([one.output_tokens + one.remaining_output_tokens for one in given], trace.output_tokens),
        max_tokens=ahead([one.max_tokens or UNKNOWN for one in given], trace.max_tokens),
        request_ids=[*(one.id for one in given), *ids],
        priority=ahead([one.priority for one in given], trace.priority),
        clients=None if trace.clients is None else [*(one.client for one in given), *trace.clients],
        queue_timeout_ns=ahead(unknown, trace.queue_timeout_ns),
        timeout_ns=ahead(unknown, trace.timeout_ns),
        cancel_after_ns=ahead(unknown, trace.cancel_after_ns),
        prefix=trace.prefix and PrefixIds(trace.prefix.group_tokens, [*(() for _ in given), *trace.prefix.ids]),
    )


def _facts(core: EngineCore) -> EngineFacts:
    spec = core.spec
    return EngineFacts(
        name=spec.name,
        total_blocks=core.store.total_blocks,
        block_tokens=core.block_tokens,
        max_running=spec.max_running,
        max_model_len=spec.max_model_len,
        step_budget=None if spec.budget.limit >= FOREVER else spec.budget.limit,
        prefix_caching=core.store.knows_contents,
        depth=spec.depth,
        peak_used_blocks=core.peak_used_blocks,
        evicted_blocks=core.store.evicted_blocks,
    )


def _cost_name(cost: CostModelConfig) -> str:
    if isinstance(cost, ProfileConfig):
        return load_profile(cost.name).name
    if isinstance(cost, LinearConfig):
        return "linear"
    return f"roofline {cost.device} {cost.model}"


def _notes(scenario: Scenario, trace: Trace) -> list[str]:
    """Assumptions that a reader of the figures should know of."""
    notes = list(trace.notes)
    if isinstance(scenario.cost, ProfileConfig):
        profile = load_profile(scenario.cost.name)
        notes += [f"profile {profile.name}: {line}" for line in (*profile.assumed, *profile.derived)]
    return notes


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * NS_PER_S)
