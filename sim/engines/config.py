"""The base of every preset's configuration, and the registry that finds presets by name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from sim.core.spec import EngineSpec
from sim.kv.hashed import HashedStore
from sim.kv.host import HostSpec
from sim.kv.radix import RadixStore
from sim.kv.store import BlockStore, CountingStore
from sim.policies.registry import Registry
from workloads.config import Config


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a preset takes from the cost model's profile where its own flags leave it open."""

    kv_tokens: int
    """KV entries that fit the device beside weights and margins."""
    max_model_len: int
    """The model's longest sequence, in tokens."""
    kv_bytes_per_token: int = 131_072
    """On one GPU. Default: Llama-3.1-8B in bf16."""
    host_link_bytes_per_s: float = 64e9
    """Between a GPU and its host, one direction: measured where the profile has it, else PCIe 5.0 x16 by data sheet."""

    def host(self, blocks: int, block_tokens: int) -> HostSpec:
        """A pool of so many blocks on the host, at the other end of the link."""
        block_bytes = block_tokens * self.kv_bytes_per_token
        return HostSpec(blocks, 1e9 * block_bytes / self.host_link_bytes_per_s, block_bytes)


UNKNOWN_HARDWARE = Hardware(kv_tokens=1 << 20, max_model_len=1 << 17)
"""For cost models that say nothing about a device."""


class EngineConfig(Config):
    """A preset's flags under that engine's own names. Frozen; unknown flags are errors."""

    preset: ClassVar[str]

    @abstractmethod
    def spec(self, hardware: Hardware) -> EngineSpec:
        """The engine that these flags describe."""


ENGINES = Registry("engine", "preset", base=EngineConfig)


def block_store(total_blocks: int, block_tokens: int, *, prefix_caching: bool) -> Callable[..., BlockStore]:
    """A maker of pools: identified blocks for a prefix cache, else one that counts."""
    family: type[HashedStore | CountingStore] = HashedStore if prefix_caching else CountingStore
    return partial(family, total_blocks, block_tokens)


def tree_store(total_blocks: int, block_tokens: int) -> Callable[..., BlockStore]:
    """A maker of pools with a radix tree as prefix cache; it wants an eviction policy."""
    return partial(RadixStore, total_blocks, block_tokens)


def engine_config(name: str, flags: dict[str, Any]) -> EngineConfig:
    """Build a preset's config. Raises UnknownName for the preset, pydantic.ValidationError for its flags."""
    config: EngineConfig = ENGINES.maker(name)(**flags)
    return config
