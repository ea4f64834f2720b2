"""From a scenario to a result: read the workload, build the engine, put both on the clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as with_changes
from pathlib import Path
from typing import Any

from costmodel.config import (
    CostModelConfig,
    ProfileConfig,
    RooflineConfig,
    build_cost_model,
    build_token_work,
)
from costmodel.pool import kv_pool
from costmodel.profile import Profile, load_profile
from costmodel.specs import device_spec, model_spec
from costmodel.work import EQUAL_WORK, TokenWork
from sim.core.cohort import FOREVER
from sim.core.engine import EngineCore
from sim.core.front import FrontLimits
from sim.core.request import Request
from sim.core.spec import EngineSpec, Quirk
from sim.driver import Arrivals, Limits, Simulation
from sim.engines import UNKNOWN_HARDWARE, Hardware
from sim.foreign import notes_on, policies_in_files, with_hashes
from sim.hosting import with_host_pool
from sim.inputs import prompt_content, set_up, timeouts_ns, to_ns, with_initial, workload
from sim.kv.content import Content
from sim.policies.admission import Conservative
from sim.policies.files import is_file, without_folder
from sim.policies.guarded import guarded
from sim.policies.protocols import Policy
from sim.policies.registry import REGISTRIES
from sim.results.columns import EngineLog, RequestColumns
from sim.results.run import EngineFacts, RunResult, Slo
from sim.scenario import PolicyChoice, Scenario, ScenarioError, TraceFile
from workloads.prefix import PrefixChain
from workloads.trace import Trace


def replay(
    scenario: Scenario, *, max_stretch: int = FOREVER, progress: Callable[[int, int], None] | None = None
) -> RunResult:
    """Run a scenario to its end (or its limits) and return the books.

    `max_stretch=1` plans every step by itself: slower, and the same result bit for bit (law 12).
    Raises ScenarioError, UnknownName, workloads' TraceError, costmodel's ProfileError, OSError, and PolicyBroke where a
    policy that is not ours breaks its contract.
    """
    try:
        scenario = scenario.model_copy(update={"policies": with_hashes(scenario.policies)})
    except ValueError as error:
        raise ScenarioError(str(error)) from None
    profile = load_profile(scenario.cost.name) if isinstance(scenario.cost, ProfileConfig) else None
    cost, token_work = build_cost_model(scenario.cost), build_token_work(scenario.cost)
    hardware = hardware_of(scenario.cost, profile)
    spec = engine_spec(scenario, hardware)
    chain = PrefixChain()
    trace = with_initial(workload(scenario, spec, chain), scenario)
    columns = RequestColumns(len(trace))
    log = EngineLog(0, columns)
    core = EngineCore(spec, log, max_stretch=max_stretch)
    set_up(core, scenario, chain, columns)
    simulation = Simulation(
        cores=[core],
        costs=[cost],
        logs=[log],
        requests=columns,
        arrivals=_arrivals(trace, core, first_row=len(scenario.initial.running)),
        limits=Limits(to_ns(scenario.max_sim_time_s), scenario.max_steps),
        capacity_events=[(to_ns(each.at_s), each.blocks) for each in scenario.capacity_events],
        progress=progress,
    )
    try:
        outcome = simulation.run()
    except OverflowError:
        raise ScenarioError("simulated time went beyond 292 years (64-bit nanoseconds): steps take too long") from None
    core.check_invariants()
    for row, given in enumerate(scenario.initial.running):
        columns.output_tokens[row] -= given.output_tokens  # those came out before this run
    return RunResult(
        scenario=describe(scenario, trace),
        trace=trace,
        requests=columns,
        logs=[log],
        engines=[_facts(core, hardware)],
        costs=simulation.costs,
        profile_name=_cost_name(scenario.cost, profile),
        slo=Slo(**scenario.slo.model_dump()),
        outcome=outcome,
        initial_rows=len(scenario.initial.running),
        notes=(*_notes(scenario, trace, spec, profile), *_policy_notes(core)),
        token_work=(token_work,),
    )


# -- arrivals


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
        timeout_ns=column(timeouts_ns(trace, core.spec)),
        cancel_after_ns=column(trace.cancel_after_ns),
    )


def _contents(trace: Trace, core: EngineCore) -> Callable[[int], Content | None]:
    """What the blocks of each row hold; nothing where no cache asks. Raises ScenarioError on unequal grids."""
    prefix, content_tokens = trace.prefix, core.store.content_tokens
    if prefix is None or not core.store.knows_contents:
        return lambda row: None
    prompts = trace.prompt_tokens.tolist()
    return lambda row: prompt_content(prefix.ids[row], prefix.group_tokens, prompts[row], content_tokens)


# -- the engine


def hardware_of(cost: CostModelConfig, profile: Profile | None) -> Hardware:
    """What the cost model knows of its device and model. Raises ScenarioError."""
    if isinstance(cost, RooflineConfig):
        model = model_spec(cost.model)
        kv_bytes = model.kv_bytes_per_token(tensor_parallel=cost.tensor_parallel)
        return Hardware(_roofline_kv_tokens(cost), model.max_model_len, kv_bytes)
    if profile is None:
        return UNKNOWN_HARDWARE
    model = profile.shapes()
    kv_tokens = profile.kv_tokens or UNKNOWN_HARDWARE.kv_tokens
    link = profile.host_link_bytes_per_s or UNKNOWN_HARDWARE.host_link_bytes_per_s
    return Hardware(kv_tokens, model.max_model_len, profile.kv_bytes_per_token, link)


def _roofline_kv_tokens(cost: RooflineConfig) -> int:
    """By the memory arithmetic of a profile; on several GPUs each holds its share of weights and of KV heads."""
    try:
        pool = kv_pool(model_spec(cost.model), device_spec(cost.device), cost.tensor_parallel)
    except ValueError as error:
        raise ScenarioError(f"cost: {error}") from None
    return pool.num_blocks * pool.block_tokens


def engine_spec(scenario: Scenario, hardware: Hardware) -> EngineSpec:
    """The preset with the scenario's policies in place of its own, foreign ones under guard.

    Raises UnknownName, ScenarioError.
    """
    try:
        spec = scenario.engine.spec(hardware)
    except ValueError as error:
        raise ScenarioError(f"engine: {error}") from None
    for kind in type(scenario.policies).model_fields:
        choice: PolicyChoice | None = getattr(scenario.policies, kind)
        if choice is not None:
            if getattr(spec, kind) is None:
                raise ScenarioError(f"policies.{kind}: the cache of {spec.name} has an order of its own")
            spec = with_changes(spec, **{kind: _policy(kind, choice, getattr(spec, kind), scenario.cost)})
    if scenario.front is not None:
        spec = with_changes(spec, front=FrontLimits(**scenario.front.model_dump()))
    try:
        spec = with_host_pool(spec, scenario.host_blocks, hardware)
    except ValueError as error:
        raise ScenarioError(str(error)) from None
    return guarded(spec)


def _policy(kind: str, choice: PolicyChoice, replaced: object, cost: CostModelConfig) -> Any:
    """The policy chosen; parameters not given are the replaced one's where it has them under the same name."""
    registry, parameters = REGISTRIES[kind], dict(choice.parameters)
    try:
        for name in registry.parameters(choice.name):
            if name not in parameters and hasattr(replaced, name) and not callable(getattr(replaced, name)):
                parameters[name] = getattr(replaced, name)
        if kind == "budget" and "weights" in parameters:
            parameters["weights"] = _weights(parameters["weights"], cost)
        if "cost" in registry.parameters(choice.name):
            parameters["cost"] = build_cost_model(cost)
        if kind == "admission" and "inner" in registry.parameters(choice.name):
            parameters["inner"] = _inner(parameters.get("inner"), replaced, cost)
        return registry.make(choice.name, **parameters)
    except ValueError as error:
        raise ScenarioError(f"policies.{kind}: {error}") from None


def _inner(given: object, replaced: object, cost: CostModelConfig) -> Any:
    """The policy that another one wraps: a name, a table of name and parameters, or the one replaced."""
    if given is None:
        return replaced
    choice = PolicyChoice.model_validate({"name": given} if isinstance(given, str) else given)
    if is_file(choice.name):
        raise ValueError(f"inner must be a registered policy, got {choice.name!r}")
    return _policy("admission", choice, replaced, cost)


def _weights(name: object, cost: CostModelConfig) -> TokenWork:
    """What a token weighs in a work budget. Raises ValueError."""
    if name == "equal":
        return EQUAL_WORK
    if name == "calibrated":
        return build_token_work(cost)
    raise ValueError(f"weights must be one of equal, calibrated, got {name!r}")


# -- what the result says of itself


def describe(scenario: Scenario, trace: Trace) -> dict[str, Any]:
    """The scenario as plain data, to be handed on: traces and code by name and hash, not by path."""
    description = scenario.model_dump(mode="json")
    for kind, choice in policies_in_files(scenario.policies).items():
        description["policies"][kind]["name"] = without_folder(choice.name)
    if isinstance(scenario.workload, TraceFile):
        description["workload"]["path"] = Path(scenario.workload.path).name
        description["workload"]["sha256"] = trace.sha256
    if isinstance(scenario.cost, ProfileConfig):
        description["cost"]["name"] = Path(scenario.cost.name).name
    return description


def _facts(core: EngineCore, hardware: Hardware) -> EngineFacts:
    spec = core.spec
    return EngineFacts(
        name=spec.name,
        total_blocks=core.most_blocks,
        block_tokens=core.block_tokens,
        max_running=spec.max_running,
        max_model_len=spec.max_model_len,
        step_budget=None if spec.budget.limit >= FOREVER else spec.budget.limit,
        prefix_caching=core.store.knows_contents,
        depth=spec.depth,
        peak_used_blocks=core.peak_used_blocks,
        evicted_blocks=core.store.evicted_blocks,
        host_block_bytes=spec.host.block_bytes if spec.host.blocks else 0,
        kv_token_bytes=0 if hardware is UNKNOWN_HARDWARE else hardware.kv_bytes_per_token,
        step_target_s=spec.budget.target_ns / 1e9 if spec.budget.target_ns else None,
    )


def _cost_name(cost: CostModelConfig, profile: Profile | None) -> str:
    if profile is not None:
        return profile.name
    return f"roofline {cost.device} {cost.model}" if isinstance(cost, RooflineConfig) else cost.kind


def _policy_notes(core: EngineCore) -> list[str]:
    """What our own policies have to say; those of others are under guard and keep silent."""
    policies = (core.order, core.admission, core.budget, core.preemption)
    return [line for policy in policies if isinstance(policy, Policy) for line in policy.notes()]


def _notes(scenario: Scenario, trace: Trace, spec: EngineSpec, profile: Profile | None) -> list[str]:
    """Assumptions that a reader of the figures should know of."""
    notes = [*trace.notes, *notes_on(scenario.policies)]
    if isinstance(spec.admission, Conservative) and any("from model_len" in note for note in notes):
        notes.append("memory is reserved for the longest answers that the model allows: see --max-tokens-from")
    if spec.request_timeout_s is not None:
        runs_on = ", and the engine computes on" if Quirk.LEAVERS_RUN_ON in spec.quirks else ""
        given = f"{spec.request_timeout_s:g} s"
        notes.append(f"requests without a deadline give up after {given}, as {spec.name} has it{runs_on}")
    if scenario.capacity_events:
        blocks = [event.blocks for event in scenario.capacity_events]
        notes.append(
            f"the pool changes {len(blocks)} times, down to {min(blocks):,} blocks: shares are of its largest size"
        )
    if profile is not None:
        notes += [f"profile {profile.name}: {line}" for line in (*profile.assumed, *profile.derived)]
    return notes
