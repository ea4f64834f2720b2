"""The host's memory for swapped KV, where a scenario gives an engine one of its own."""

from __future__ import annotations

from dataclasses import replace

from sim.core.spec import EngineSpec
from sim.engines import Hardware


def with_host_pool(spec: EngineSpec, blocks: int | None, hardware: Hardware) -> EngineSpec:
    """The engine with a pool of so many blocks on the host; None leaves it the preset's own.

    Raises ValueError if the preemption policy swaps and there is no pool. A pool that nobody uses does no harm.
    """
    swaps = spec.preemption.may_swap
    if blocks is not None:
        spec = replace(spec, host=hardware.host(blocks, spec.new_store().block_tokens))
    if swaps and not spec.host.blocks:
        raise ValueError(
            "the preemption policy swaps, which needs a pool on the host: give host_blocks (--host-blocks)"
        )
    return spec
