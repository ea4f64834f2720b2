"""The host's pool of blocks for swapped KV."""

from __future__ import annotations

import pytest

from sim.core.request import Request
from sim.engines import Hardware
from sim.kv.host import NO_HOST, HostPool, HostSpec


def request(name: str) -> Request:
    return Request(name, prompt_tokens=1, max_tokens=1)


def test_blocks_come_back_as_a_request_leaves() -> None:
    """Taken and released as a whole, and counted on the way."""
    pool, one, two = HostPool(HostSpec(10)), request("1"), request("2")
    pool.take(one, 6)
    pool.take(two, 4)
    pool.check_invariants()
    assert (pool.free_blocks, pool.held_blocks(one)) == (0, 6)
    assert pool.release(one) == 6
    assert pool.free_blocks == 6
    pool.check_invariants()


def test_no_more_than_there_are() -> None:
    """The caller asks first; taking too many is a bug."""
    pool = HostPool(HostSpec(2))
    with pytest.raises(AssertionError):
        pool.take(request("1"), 3)
    assert HostPool(NO_HOST).free_blocks == 0


def test_a_block_takes_its_bytes_over_the_link() -> None:
    """16 tokens of 131,072 bytes at 64 GB/s: 2,097,152 B / 64e9 B/s = 32.768 µs."""
    host = Hardware(kv_tokens=1, max_model_len=1).host(7, 16)
    assert (host.blocks, host.block_bytes, host.ns_per_block) == (7, 2_097_152, 32_768.0)
