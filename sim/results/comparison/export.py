"""A comparison as one JSON document: verdicts, differences, and every run with the scenario to repeat it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sim.policies.files import is_file, without_folder
from sim.results.comparison.cell import Cell
from sim.results.comparison.comparison import Comparison
from sim.results.comparison.replications import METHOD
from sim.results.comparison.tables import long_rows

SCHEMA_VERSION = 1


def comparison_json(comparison: Comparison) -> str:
    """Deterministic; every number is finite, what has no value is null and its `state` says why."""
    return json.dumps(document(comparison), indent=1, allow_nan=False) + "\n"


def document(comparison: Comparison) -> dict[str, Any]:
    return {
        "tool": "tokenwork",
        "schema_version": SCHEMA_VERSION,
        "kind": "comparison",
        "partial": bool(comparison.num_missing),
        "runs_missing": comparison.num_missing,
        "base": comparison.base,
        "variants": comparison.variants,
        "replications": comparison.num_replications,
        "replication": "block" if comparison.plan.blocks else "seed" if comparison.num_replications > 1 else None,
        "interval": METHOD if comparison.num_replications > 1 else None,
        "verdicts": comparison.verdicts,
        "why": comparison.why,
        "differences": list(long_rows(comparison)),
        "runs": [_run(each) for each in comparison.cells.values()],
        "plan": portable_plan(comparison),
    }


def _run(cell: Cell) -> dict[str, Any]:
    return {
        "trace": cell.key.trace,
        "rate_scale": cell.key.rate_scale,
        "variant": cell.key.variant,
        "seed": cell.scenario.get("seed", 0),
        "state": cell.state.value,
        "warnings": list(cell.lines),
        "metrics": {name: row.value for name, row in cell.rows.items()},
        "blocks": {name: list(values) for name, values in cell.blocks.items()},
        "reasons": cell.reasons,
        "scenario": cell.scenario,
    }


def portable_scenario(cell: Cell) -> dict[str, Any]:
    """For `tokenwork replay --scenario`: without what is not set."""
    return {key: value for key, value in cell.scenario.items() if value not in (None, "", [], {})}


def portable_plan(comparison: Comparison) -> dict[str, Any]:
    """For `tokenwork compare --file`: traces and code by name, to be found beside the file; traces with their hash."""
    plan = comparison.plan.model_dump(mode="json", exclude_defaults=True)
    workloads = {cell.key.trace: cell.scenario["workload"] for cell in comparison.cells.values()}
    if comparison.plan.workloads:
        plan["workloads"] = list(workloads.values())
    elif workloads:
        plan["scenario"]["workload"] = next(iter(workloads.values()))
    out: dict[str, Any] = _without_folders(plan)
    return out


def _without_folders(value: Any) -> Any:
    """The same data; wherever a policy, a profile or a trace was named with its folder, by its name alone."""
    if isinstance(value, dict):
        return {key: _without_folders(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_folders(each) for each in value]
    if isinstance(value, str) and is_file(value):
        return without_folder(value)
    if isinstance(value, str) and value.endswith(".json"):
        return Path(value).name
    return value
