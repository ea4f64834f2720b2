"""Array types of the results, and columns seen as arrays."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
SmallIntArray = NDArray[np.int32]
"""For rows, steps and counts of steps, where there are many of them at a time."""
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

CHUNK = 1 << 14
"""So many elements at a time where only a sum is wanted and what is summed would take much memory."""


def view(column: array[int]) -> IntArray:
    """A column without a copy; it must not grow as long as the view lives."""
    return np.asarray(column, dtype=np.int64)


def same(values: IntArray, value: int) -> BoolArray:
    """Where a column has this value."""
    mask: BoolArray = np.equal(values, value)
    return mask
