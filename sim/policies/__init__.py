"""Policies: small objects chosen by name that decide order, admission, work budget, victims and what a cache drops.

Every module in here registers its policies when it is imported; there is no other list.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from sim.policies.registry import REGISTRIES, Registry

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["all_policies"]


def all_policies() -> dict[str, Registry]:
    """Kind -> its registry, with every built-in policy in it."""
    return dict(REGISTRIES)
