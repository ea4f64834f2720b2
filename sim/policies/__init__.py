"""Policies: small objects chosen by name that decide order, admission, work budget and victims."""

from sim.policies import admission, budget, order, preemption
from sim.policies.registry import REGISTRIES, Registry

__all__ = ["admission", "all_policies", "budget", "order", "preemption"]


def all_policies() -> dict[str, Registry]:
    """Kind -> its registry, with every built-in policy in it."""
    return dict(REGISTRIES)
