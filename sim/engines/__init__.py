"""Presets: each file makes one engine out of passes, policies and quirks, under that engine's own flag names."""

from importlib import import_module
from pkgutil import iter_modules

from sim.engines.config import ENGINES, UNKNOWN_HARDWARE, EngineConfig, Hardware, engine_config
from sim.engines.reference import Reference
from sim.engines.static_batch import StaticBatch
from sim.engines.textbook import Textbook
from sim.engines.vllm_v1 import VllmV1

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "ENGINES",
    "UNKNOWN_HARDWARE",
    "EngineConfig",
    "Hardware",
    "Reference",
    "StaticBatch",
    "Textbook",
    "VllmV1",
    "engine_config",
]
