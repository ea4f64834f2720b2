"""A comparison as pandas tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sim.results.comparison.comparison import Comparison, Entry, Place

if TYPE_CHECKING:
    import pandas as pd

WHERE = ["trace", "rate_scale", "variant"]


def long_rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """One row per place, variant and metric of the catalog."""
    for place in comparison.places:
        for entry in comparison.entries(place):
            for metric, row in entry.first.rows.items():
                worst = entry.row(metric)
                found = (
                    None if entry.variant == comparison.base else comparison.difference(place, entry.variant, metric)
                )
                yield {
                    "trace": place.trace,
                    "rate_scale": place.rate_scale,
                    "variant": entry.variant,
                    "metric": metric,
                    "value": entry.mean(metric),
                    "unit": row.unit,
                    "vs_base": found.ratio if found else None,
                    "low": found.low if found else None,
                    "high": found.high if found else None,
                    "replications": found.n if found else len(entry.values(metric, list(entry.cells))),
                    "n": worst.n,
                    "state": worst.state,
                }


def long_table(comparison: Comparison) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame(list(long_rows(comparison)))
    numbers = ["value", "vs_base", "low", "high"]
    if frame.empty:
        return frame
    frame[numbers] = frame[numbers].astype(float)
    return frame.set_index([*WHERE, "metric"])


def cell_table(comparison: Comparison) -> pd.DataFrame:
    """One row per run and metric, seeds apart: what `cells.parquet` holds."""
    import pandas as pd

    rows = [
        {
            "trace": key.trace,
            "rate_scale": key.rate_scale,
            "seed": key.seed,
            "variant": key.variant,
            "metric": row.name,
            "value": None if row.value is None else float(row.value),
            "unit": row.unit,
            "n": row.n,
            "state": row.state,
            "run_state": cell.state.value,
        }
        for key, cell in comparison.cells.items()
        for row in cell.rows.values()
    ]
    return pd.DataFrame(rows)


def wide_table(comparison: Comparison, metrics: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    rows = [
        {"trace": place.trace, "rate_scale": place.rate_scale, "variant": entry.variant, "state": entry.state.value}
        | {metric: entry.mean(metric) for metric in metrics}
        for place, entry in entries_everywhere(comparison)
    ]
    frame = pd.DataFrame(rows)
    index = [name for name in WHERE if name == "variant" or frame[name].nunique() > 1]
    return frame.drop(columns=[name for name in WHERE if name not in index]).set_index(index)


def reason_table(comparison: Comparison) -> pd.DataFrame:
    import pandas as pd

    counts: dict[tuple[str, str], dict[tuple[str, float, str], int]] = {}
    for place, entry in entries_everywhere(comparison):
        for cell in entry.cells.values():
            for what, reasons in cell.reasons.items():
                for reason, times in reasons.items():
                    column = counts.setdefault((what, reason), {})
                    where = (place.trace, place.rate_scale, entry.variant)
                    column[where] = column.get(where, 0) + times
    columns = pd.MultiIndex.from_tuples(
        [(place.trace, place.rate_scale, entry.variant) for place, entry in entries_everywhere(comparison)], names=WHERE
    )
    index = (
        pd.MultiIndex.from_tuples(sorted(counts), names=["what", "reason"])
        if counts
        else pd.MultiIndex.from_arrays([[], []], names=["what", "reason"])
    )
    data = [[counts[row].get(column, 0) for column in columns] for row in sorted(counts)]
    return pd.DataFrame(data, index=index, columns=columns)


def entries_everywhere(comparison: Comparison) -> list[tuple[Place, Entry]]:
    return [(place, entry) for place in comparison.places for entry in comparison.entries(place)]
