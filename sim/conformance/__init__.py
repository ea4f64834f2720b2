"""Does an engine take the decisions that a real one took? One module per recorded engine, found without any list.

A recorder makes our own log of a recorded scenario, from its inputs alone; a separate step compares the two logs.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from sim.conformance.compare import Comparison, check, compare
from sim.conformance.recorder import RECORDERS, Log, NotCovered, Recorder
from sim.conformance.recording import BadRecording, Recording, Scenario, load, load_folder

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
__all__ = [
    "RECORDERS",
    "BadRecording",
    "Comparison",
    "Log",
    "NotCovered",
    "Recorder",
    "Recording",
    "Scenario",
    "check",
    "compare",
    "load",
    "load_folder",
]
