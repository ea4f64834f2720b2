"""A comparison, run: every variant on the same requests, spread over processes, put together in the plan's order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sim.driver import INTERRUPTED
from sim.replay import replay
from sim.results.comparison.cell import Cell, cell_of
from sim.results.comparison.comparison import Comparison
from sim.scenario import Scenario
from sim.variants import ComparePlan, Point, make_plan, points


def compare(
    scenario: Scenario | Mapping[str, Any],
    variants: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    vary: Mapping[str, Sequence[Any]] | None = None,
    workloads: Sequence[Mapping[str, Any]] = (),
    rate_scales: Sequence[float] = (1.0,),
    seeds: Sequence[int] = (),
    blocks: int | None = None,
    jobs: int = 1,
) -> Comparison:
    """Replay variants of a scenario and lay the results side by side; the first variant is the base.

    compare(base, {"2048": {"engine": {"max_num_batched_tokens": 2048}}, "8192": {...}}, rate_scales=[1, 2])
    compare(base, vary={"max_num_batched_tokens": [2048, 8192]}, seeds=range(10))

    `jobs`: processes; -1 = one per core. The result does not depend on it. Raises what `replay` raises.
    """
    base = scenario.model_dump(mode="json") if isinstance(scenario, Scenario) else dict(scenario)
    plan = make_plan(
        {
            "scenario": base,
            "variants": {name: dict(changes) for name, changes in (variants or {}).items()},
            "vary": {key: tuple(values) for key, values in (vary or {}).items()},
            "workloads": tuple(dict(each) for each in workloads),
            "rate_scales": tuple(rate_scales),
            "seeds": tuple(seeds),
            "blocks": blocks,
        }
    )
    return run_plan(plan, points(plan), jobs=jobs)


def run_plan(
    plan: ComparePlan, runs: Sequence[Point], *, jobs: int = 1, progress: Callable[[int], None] | None = None
) -> Comparison:
    """`progress` is told how many runs are done. Ctrl-C leaves a comparison of those."""
    cells: list[Cell] = []
    try:
        for cell in _measured(runs, plan.blocks, jobs):
            if cell is None:
                break
            cells.append(cell)
            if progress is not None:
                progress(len(cells))
    except KeyboardInterrupt:
        pass
    by_key = {cell.key: cell for cell in cells}
    ordered = {point.key: by_key[point.key] for point in runs if point.key in by_key}
    return Comparison(plan, tuple(point.key for point in runs), ordered)


def _measured(runs: Sequence[Point], blocks: int | None, jobs: int) -> Iterable[Cell | None]:
    """In the order in which they get done."""
    if jobs == 1 or len(runs) == 1:
        return (measure(point, blocks) for point in runs)
    from joblib import Parallel, delayed

    parallel = Parallel(n_jobs=jobs, return_as="generator_unordered", pre_dispatch="n_jobs", batch_size=1)
    done: Iterable[Cell | None] = parallel(delayed(measure)(point, blocks) for point in runs)
    return done


def measure(point: Point, blocks: int | None) -> Cell | None:
    """One run; None if Ctrl-C stopped it (a part of a run is compared with nothing)."""
    result = replay(point.scenario)
    return None if result.outcome.stopped == INTERRUPTED else cell_of(point.key, result, blocks)
