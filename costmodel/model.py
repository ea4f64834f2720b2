"""The protocol of everything that prices a step."""

from __future__ import annotations

from typing import Protocol

from costmodel.shape import StepShape


class CostModel(Protocol):
    """Durations of steps. Pure: nothing a caller can see changes by asking."""

    def step_times_ns(self, shape: StepShape, steps: int, /) -> list[int]:
        """The durations of `steps` consecutive steps in integer nanoseconds, each > 0.

        Element i is the step whose shape is `shape.after(i)`, is rounded once (half to even) and depends on that shape
        only: `step_times_ns(shape, k)[i] == step_times_ns(shape.after(i), 1)[0]`, so a stretch may be split anywhere.
        """
        ...

    def seconds(self, shape: StepShape, /) -> float:
        """The duration of one step before rounding."""
        ...

    def parts(self, shape: StepShape, /) -> dict[str, float]:
        """Seconds by what they are spent on; their sum is `seconds(shape)` up to float rounding."""
        ...

    def out_of_range(self, shape: StepShape, /) -> str | None:
        """Why the prediction is an extrapolation, or None where the model was fitted for such a step."""
        ...
