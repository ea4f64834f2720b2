"""What a scenario puts in: the requests that will arrive, and the state that an engine begins in."""

from __future__ import annotations

from dataclasses import replace as with_changes
from typing import Any, overload

import numpy as np

from sim.core.engine import EngineCore
from sim.core.request import Request
from sim.core.spec import EngineSpec
from sim.kv.content import Content
from sim.results.columns import RequestColumns
from sim.scenario import Bundled, Inline, Scenario, ScenarioError, Synthetic, TraceFile
from workloads.bundled import bundled_names, bundled_trace
from workloads.formats import read_trace
from workloads.max_tokens import resolve_max_tokens
from workloads.prefix import PrefixChain
from workloads.select import limit, scale_rate
from workloads.synthetic import generate
from workloads.trace import UNKNOWN, IntArray, PrefixIds, Trace

NS_PER_S = 1_000_000_000


def workload(scenario: Scenario, spec: EngineSpec, chain: PrefixChain) -> Trace:
    """The requests that will arrive, max_tokens filled in. Raises TraceError, ScenarioError, OSError."""
    trace = _requests(scenario, chain)
    if scenario.limit is not None:
        trace = limit(trace, scenario.limit)
    try:
        if scenario.rate_scale != 1.0:
            trace = scale_rate(trace, scenario.rate_scale)
        return resolve_max_tokens(trace, scenario.max_tokens_from, max_model_len=spec.max_model_len)
    except ValueError as error:
        raise ScenarioError(f"workload: {error}") from None


def _requests(scenario: Scenario, chain: PrefixChain) -> Trace:
    source = scenario.workload
    if isinstance(source, TraceFile):
        return _trace_file(source)
    if isinstance(source, Bundled):
        if source.name not in bundled_names():
            raise ScenarioError(f"workload.name: no bundled trace {source.name!r}: {', '.join(bundled_names())}")
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
        return np.array(
            [UNKNOWN if getattr(row, name) is None else to_ns(getattr(row, name)) for row in rows], np.int64
        )

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


def timeouts_ns(trace: Trace, spec: EngineSpec) -> IntArray | None:
    """How long after its arrival each row gives up: the workload's word, else the engine's default. UNKNOWN: never."""
    if spec.request_timeout_s is None:
        return trace.timeout_ns
    default_ns = to_ns(spec.request_timeout_s)
    given = np.full(len(trace), UNKNOWN) if trace.timeout_ns is None else trace.timeout_ns
    return np.where(given == UNKNOWN, default_ns, given)


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


def set_up(core: EngineCore, scenario: Scenario, chain: PrefixChain, columns: RequestColumns) -> None:
    """Put the initial state into an engine. Raises ScenarioError if it does not fit."""
    group_tokens, content_tokens = _initial_group_tokens(scenario, core.block_tokens), core.store.content_tokens
    try:
        for cached in scenario.initial.cached:
            ids = chain.chained(cached.prefix_ids)
            content = prompt_content(ids, group_tokens, cached.tokens, content_tokens)
            blocks = content.shared_blocks * content_tokens // core.block_tokens
            if blocks > core.store.free_blocks:
                raise ValueError(f"a cached prefix of {blocks} blocks does not fit the {core.store.free_blocks} free")
            ghost = Request("", prompt_tokens=cached.tokens, max_tokens=1, content=content)
            core.store.seed(ghost, blocks)
        for row, given in enumerate(scenario.initial.running):
            shared: Content | None = None
            if core.store.knows_contents:
                ids = chain.chained(given.prefix_ids)
                shared = prompt_content(ids, group_tokens, given.prompt_tokens, content_tokens)
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


def _initial_group_tokens(scenario: Scenario, block_tokens: int) -> int:
    """Tokens behind one prefix id of the initial state. Raises ScenarioError if its ids would mean nothing.

    Only an inline workload shares its ids with the initial state: those of files and generators are numbered by their
    readers, so that equal numbers here and there would be hits by accident.
    """
    if isinstance(scenario.workload, Inline):
        return scenario.workload.prefix_group_tokens
    initial = scenario.initial
    if initial.cached or any(given.prefix_ids for given in initial.running):
        raise ScenarioError(f"initial: prefix ids need an inline workload, this one is {scenario.workload.kind!r}")
    return block_tokens


@overload
def to_ns(seconds: float) -> int: ...
@overload
def to_ns(seconds: None) -> None: ...
def to_ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * NS_PER_S)
