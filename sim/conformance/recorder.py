"""What a recorded engine's module supplies, and the registry that finds it by the engine's name in the recording."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from sim.core.cohort import FOREVER
from sim.policies.registry import Registry

Log = dict[str, Any]
"""What came out of one scenario: `steps`, a list of objects, and perhaps fields beside it."""

RECORDERS = Registry("conformance", "recorder")
"""The recorded engine's name -> its Recorder."""


class NotCovered(Exception):
    """A scenario of something that is not built; the text says what."""


class Recorder(ABC):
    """Drives our core as the recorder of one engine drove the real scheduler. Holds no state of a scenario."""

    compared: ClassVar[tuple[str, ...]]
    """Fields that must agree: those of a step, and those beside the steps. A field that only one log has differs."""
    printed: ClassVar[tuple[str, ...]] = ()
    """Fields that are compared too, where a difference is told and not held against us."""
    unverified: ClassVar[tuple[str, ...]] = ()
    """Parts of the engine that no recording shows."""

    @abstractmethod
    def emit(self, input: dict[str, Any], *, max_stretch: int = FOREVER) -> Log:
        """Our own log of a scenario, in the recording's form. Leaves `input` as it is. Raises NotCovered."""

    def comparable(self, log: Log) -> Log:
        """A log as it is compared, for either side: rounded, ids renamed, ... Must leave `log` as it is."""
        return log
