"""`tokenwork list`: what can be chosen by name, with parameters, their types and defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import Parameter, getdoc
from typing import Annotated, Any

import typer

from costmodel.profile import profile_names
from costmodel.work import EQUAL_WORK
from sim.commands.errors import wrong_use
from sim.engines import ENGINES
from sim.policies import all_policies
from sim.policies.parameters import parameters_of, type_words, types_of
from sim.policies.registry import Registry
from sim.results.catalog import SINGLES, SPREADS, Single, Spread
from sim.results.metrics import STATISTICS
from workloads.bundled import bundled_names
from workloads.formats import format_names

UNLIMITED = 1 << 60


def list_(
    kind: Annotated[str | None, typer.Argument(help="Only this kind: engine, order, admission, ...")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Parameters, defaults, one line each.")] = False,
) -> None:
    """List engines, policies, cost profiles, trace formats, bundled traces and metrics."""
    registries = {"engine": ENGINES, **all_policies()}
    names = {"profile": profile_names(), "format": list(format_names()), "trace": list(bundled_names())}
    names["metric"] = list(_metrics(verbose))
    kinds = [*registries, *names]
    if kind is not None and kind not in kinds:
        raise wrong_use(f"unknown kind {kind!r}: known are {', '.join(kinds)}")
    for each in kinds if kind is None else [kind]:
        print(f"{each}:")
        if each in names:
            for name in names[each]:
                print(f"  {name}")
        else:
            _print_registry(registries[each], verbose)


def _metrics(verbose: bool) -> Iterator[str]:
    """`p99_ttft_s: s, of finished requests, lower is better, vllm p99_ttft_ms`, for each statistic of a spread."""
    metrics: tuple[Single | Spread, ...] = (*SINGLES, *SPREADS)
    for metric in metrics:
        name, serve = metric.name, metric.serve
        if isinstance(metric, Spread):
            name = f"{{{','.join(STATISTICS)}}}_{name}"
            serve = f"{{mean,median,std,pP}}_{serve}_ms" if serve else ""
        if not verbose:
            yield name
            continue
        of = f", of {metric.population} requests" if metric.population else ""
        better = f", {metric.better} is better" if metric.better else ""
        yield f"{name}: {metric.unit}{of}{better}" + (f", vllm bench serve {serve}" if serve else "")


def _print_registry(registry: Registry, verbose: bool) -> None:
    for name in registry.names():
        if not verbose:
            print(f"  {name}")
            continue
        maker = registry.maker(name)
        summary = (getdoc(maker) or "").split("\n\n")[0].replace("\n", " ")
        print(f"  {name}: {summary}")
        for line in _parameters(maker, flags=registry is ENGINES):
            print(f"    {line}")


def _parameters(maker: Callable[..., Any], *, flags: bool) -> Iterator[str]:
    """`watermark_blocks: int = 0`, one line each; an engine's are flags, `--max-num-seqs: int = 1024`."""
    types = types_of(maker)
    for name, parameter in parameters_of(maker).items():
        wanted = parameter.annotation if flags else types.get(name, Parameter.empty)
        declared = "" if wanted is Parameter.empty else f": {type_words(wanted)}"
        shown = "--" + name.replace("_", "-") if flags else name
        yield f"{shown}{declared}{_default(parameter.default)}"


def _default(default: object) -> str:
    if default is Parameter.empty:
        return " (required)"
    if isinstance(default, int | float) and default >= UNLIMITED:
        return " = unlimited"
    if isinstance(default, bool) or default is None:
        return f" = {str(default).lower()}"
    if default is EQUAL_WORK:
        return " = equal"
    return f" = {default}" if isinstance(default, int | float | str) else " = its own"
