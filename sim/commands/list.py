"""`tokenwork list`: what can be chosen by name, with parameters and defaults."""

from __future__ import annotations

from inspect import Parameter, getdoc, signature
from typing import Annotated

import typer

from costmodel.profile import profile_names
from sim.commands.errors import wrong_use
from sim.engines import ENGINES
from sim.policies import all_policies
from sim.policies.registry import Registry
from workloads.bundled import bundled_names
from workloads.formats import format_names


def list_(
    kind: Annotated[str | None, typer.Argument(help="Only this kind: engine, order, admission, ...")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Parameters, defaults, one line each.")] = False,
) -> None:
    """List engines, policies, cost profiles, trace formats and bundled traces."""
    registries = {"engine": ENGINES, **all_policies()}
    names = {"profile": profile_names(), "format": list(format_names()), "trace": list(bundled_names())}
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


def _print_registry(registry: Registry, verbose: bool) -> None:
    for name in registry.names():
        maker = registry.maker(name)
        if not verbose:
            print(f"  {name}")
            continue
        summary = (getdoc(maker) or "").split("\n\n")[0].replace("\n", " ")
        print(f"  {name}: {summary}")
        for parameter in signature(maker).parameters.values():
            if parameter.kind is not Parameter.VAR_KEYWORD:
                print(f"    {_parameter(registry.kind, parameter)}")


def _parameter(kind: str, parameter: Parameter) -> str:
    name = "--" + parameter.name.replace("_", "-") if kind == "engine" else parameter.name
    if parameter.default is Parameter.empty:
        return f"{name} (required)"
    default = parameter.default
    shown = "unlimited" if isinstance(default, int | float) and default >= 1 << 60 else default
    return f"{name} = {shown if isinstance(shown, int | float | str | None) else 'equal'}"
