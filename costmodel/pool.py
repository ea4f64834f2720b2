"""How many KV blocks a device has room for, as a profile writes it down."""

from __future__ import annotations

from typing import Protocol

from costmodel.profile import KvPool, MemoryItem
from costmodel.specs import BF16_BYTES, ModelSpec

UTILISATION = 0.92
BLOCK_TOKENS = 16
ACTIVATION_ROWS = 8192
LOGIT_ROWS = 1024
LOGIT_BYTES = 10
GRAPH_BYTES = 1 << 29
OTHER_BYTES = 3_758_096_384


class Memory(Protocol):
    """A device as far as its pool goes."""

    @property
    def name(self) -> str: ...

    @property
    def memory_bytes(self) -> int: ...


def kv_pool(model: ModelSpec, device: Memory, tensor_parallel: int = 1) -> KvPool:
    """What is left for KV on one of `tensor_parallel` devices, in blocks. Raises ValueError if nothing is."""
    lines = _memory_items(model, device, tensor_parallel)
    bytes_per_token = model.kv_bytes_per_token(tensor_parallel=tensor_parallel)
    num_blocks = sum(line.num_bytes for line in lines) // (BLOCK_TOKENS * bytes_per_token)
    if num_blocks < 1:
        where = f"one {device.name}" if tensor_parallel == 1 else f"each of {tensor_parallel} {device.name}"
        raise ValueError(f"{model.name} leaves no room for KV on {where}")
    return KvPool(
        num_blocks=num_blocks,
        block_tokens=BLOCK_TOKENS,
        bytes_per_token=bytes_per_token,
        arithmetic=lines,
    )


def _memory_items(model: ModelSpec, device: Memory, tensor_parallel: int) -> tuple[MemoryItem, ...]:
    weight_bytes = -(-model.parameters * BF16_BYTES // tensor_parallel)
    activation_values = 3 * model.intermediate + 4 * model.hidden + model.query_width + 2 * model.kv_width()
    return (
        MemoryItem(
            what=f"{UTILISATION} of {device.memory_bytes:,} B device memory",
            num_bytes=int(device.memory_bytes * UTILISATION),
            source="vLLM's default gpu_memory_utilization",
        ),
        MemoryItem(
            what=f"weights: {model.parameters:,} parameters * {BF16_BYTES} B"
            + (f" / {tensor_parallel}" if tensor_parallel > 1 else ""),
            num_bytes=-weight_bytes,
            source="the model's shapes",
        ),
        MemoryItem(
            what=f"activations: {ACTIVATION_ROWS:,} rows * {activation_values:,} values * {BF16_BYTES} B",
            num_bytes=-ACTIVATION_ROWS * activation_values * BF16_BYTES,
            source="assumed: one layer's inputs and outputs at once, at vLLM's default token budget for this class",
        ),
        MemoryItem(
            what=f"logits: {LOGIT_ROWS:,} rows * {model.vocabulary:,} * {LOGIT_BYTES} B",
            num_bytes=-LOGIT_ROWS * model.vocabulary * LOGIT_BYTES,
            source="assumed: bf16 and two fp32 copies while sampling",
        ),
        MemoryItem(what="CUDA graphs", num_bytes=-GRAPH_BYTES, source="assumed"),
        MemoryItem(
            what="driver, libraries, workspaces, fragmentation",
            num_bytes=-OTHER_BYTES,
            source="aiconfigurator's system file (other_mem), its authors' safe value",
        ),
    )
