"""GEMMs by themselves: how well a sum of launch, weights read, rows moved and arithmetic says what they take.

Held out by structure: one projection's (n, k) at a time, and the largest decade of rows. What it says of an unseen
shape is how far a model of other widths could be priced from these samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrate.fit import FloatArray, fit_weights, held_out_predictions, region_errors
from calibrate.fit_report import errors_text
from calibrate.records import Measurement, TaskSpec
from calibrate.timed_samples import repeated

KNEES_ROWS = (0, 16, 64, 128, 256)
"""Where arithmetic may begin to take longer than reading the weights."""
LEAST_GEMMS = 20
LEAST_SHAPES = 3


def operators_text(measurements: Sequence[Measurement]) -> str:
    """A table of held-out errors; empty where too few GEMMs were timed to hold any out."""
    times = {task: seconds for task, seconds in repeated(measurements).items() if task.kind == "gemm"}
    tasks = list(times)
    shapes = [f"{task.gemm}, n {task.n:,}, k {task.k:,}" for task in tasks]
    if len(tasks) < LEAST_GEMMS or len(set(shapes)) < LEAST_SHAPES:
        return ""
    matrix = np.array([_features(task) for task in tasks])
    seconds = np.array([float(np.median(times[task])) for task in tasks])
    held = held_out_predictions(matrix, seconds, shapes)
    *rows, total = region_errors(held, seconds, shapes)
    most = max(task.rows for task in tasks)
    large = np.array([task.rows > most // 10 for task in tasks])
    if (~large).sum() >= LEAST_GEMMS:
        weights = fit_weights(matrix[~large], seconds[~large], np.array(shapes)[~large].tolist())
        name = f"largest decade, > {most // 10} rows"
        rows.append(region_errors(matrix[large] @ weights, seconds[large], [name] * int(large.sum()))[0])
    return "GEMMs, each (n, k) predicted by a fit to the others\n" + errors_text((*rows, total))


def _features(task: TaskSpec) -> FloatArray:
    weights = task.n * task.k
    hinges = [max(0, task.rows - knee) * weights for knee in KNEES_ROWS]
    return np.array([1, weights, task.rows * (task.n + task.k), *hinges], dtype=np.float64)
