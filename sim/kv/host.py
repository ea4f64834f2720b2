"""The host's memory for swapped KV: a finite number of blocks, at the other end of a link with a bandwidth."""

from __future__ import annotations

from dataclasses import dataclass

from sim.core.request import Request


@dataclass(frozen=True, slots=True)
class HostSpec:
    """What an engine has for swapping."""

    blocks: int = 0
    """0: there is no swapping."""
    ns_per_block: float = 0.0
    """Time of moving one block over the link, either way; charged to the step that moves it."""
    block_bytes: int = 0
    """For reports."""


NO_HOST = HostSpec()


class HostPool:
    """Blocks of swapped requests. A request moves as a whole."""

    def __init__(self, spec: HostSpec) -> None:
        self.ns_per_block = spec.ns_per_block
        self.total_blocks = spec.blocks
        self.free_blocks = spec.blocks
        self._held: dict[Request, int] = {}

    def take(self, request: Request, blocks: int) -> None:
        """The caller has found the blocks to be there."""
        assert blocks <= self.free_blocks
        self._held[request] = blocks
        self.free_blocks -= blocks

    def held_blocks(self, request: Request) -> int:
        return self._held[request]

    def release(self, request: Request) -> int:
        """Give a request's blocks back; returns how many they were."""
        blocks = self._held.pop(request)
        self.free_blocks += blocks
        return blocks

    def check_invariants(self) -> None:
        assert 0 <= self.free_blocks <= self.total_blocks
        assert self.free_blocks + sum(self._held.values()) == self.total_blocks
