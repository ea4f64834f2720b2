"""Attention over paged KV by FlashInfer, as vLLM and SGLang use it on CUDA. Only imported where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Any

import flashinfer
import numpy as np
import torch

from calibrate.paged import BlockPool, PagedSequence
from costmodel.specs import ModelSpec

WORKSPACE_BYTES = 394 << 20
"""As in vLLM: a smaller one is too small for some long chunks."""
TRIED = ((20, 37, True), (1, 100, False), (3, 64, False))
"""A batch with one sequence of each kind: (tokens, context, prompt)."""


class FlashInferAttention:
    """Keys and values per layer in FlashInfer's NHD layout. Shape of each: (blocks, block_tokens, KV heads, size).

    Chunks, decodes and verifications are each one call: decodes by the decode kernel, the others by the append kernel.
    """

    def __init__(
        self, model: ModelSpec, num_blocks: int, block_tokens: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (num_blocks, block_tokens, model.kv_heads, model.head_dim)

        def values() -> torch.Tensor:
            return torch.randn(shape, dtype=dtype, device=device)

        self._caches = [(values(), values()) for _ in range(model.layers)]
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._heads = (model.query_heads, model.kv_heads, model.head_dim, block_tokens)
        self._block_tokens = block_tokens
        self._dtype = dtype
        self.keep_plan()

    def keep_plan(self) -> None:
        """New wrappers for later plans: a graph goes on reading the buffers of those it was captured with."""
        decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(self._workspace, "NHD", use_tensor_cores=True)
        append = flashinfer.BatchPrefillWithPagedKVCacheWrapper
        self._wrappers = {
            "chunks": append(self._workspace, "NHD"),
            "decodes": decode,
            "verifications": append(self._workspace, "NHD"),
        }

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        for cache, new in zip(self._caches[layer], (keys, values), strict=True):
            cache.flatten(0, 1).index_copy_(0, slots, new)

    def plan(self, batch: Sequence[PagedSequence]) -> list[tuple[slice, Any]]:
        plan = []
        start = 0
        for kind, members in groupby(batch, key=_kind):
            group = list(members)
            rows = slice(start, start + sum(sequence.tokens for sequence in group))
            self._plan_group(kind, group)
            plan.append((rows, self._wrappers[kind]))
            start = rows.stop
        return plan

    def _plan_group(self, kind: str, group: Sequence[PagedSequence]) -> None:
        indptr = _offsets([len(sequence.table) for sequence in group])
        indices = torch.from_numpy(np.concatenate([sequence.table for sequence in group]).astype(np.int32))
        last = torch.tensor([(s.kv_tokens - 1) % self._block_tokens + 1 for s in group], dtype=torch.int32)
        pages = (indptr, indices.to(self._workspace.device), last)
        dtypes = {"q_data_type": self._dtype, "kv_data_type": self._dtype}
        if kind == "decodes":
            self._wrappers[kind].plan(*pages, *self._heads, **dtypes)
        else:
            rows = _offsets([sequence.tokens for sequence in group])
            self._wrappers[kind].plan(rows, *pages, *self._heads, causal=True, **dtypes)

    def attend(self, layer: int, queries: torch.Tensor, plan: object) -> torch.Tensor:
        assert isinstance(plan, list)
        parts = [wrapper.run(queries[rows], self._caches[layer]) for rows, wrapper in plan]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def try_out(model: ModelSpec, dtype: torch.dtype, device: torch.device) -> None:
    """One layer of one small batch. Raises whatever keeps the kernels from running here."""
    block_tokens, num_blocks = 16, 32
    one_layer = model.model_copy(update={"layers": 1})
    attention = FlashInferAttention(one_layer, num_blocks, block_tokens, dtype=dtype, device=device)
    batch = BlockPool(num_blocks, block_tokens, seed=0).place(TRIED)
    rows = sum(tokens for tokens, _, _ in TRIED)
    queries = torch.randn((rows, model.query_heads, model.head_dim), dtype=dtype, device=device)
    attention.attend(0, queries, attention.plan(batch))


def _kind(sequence: PagedSequence) -> str:
    if sequence.prompt:
        return "chunks"
    return "decodes" if sequence.tokens == 1 else "verifications"


def _offsets(counts: Sequence[int]) -> torch.Tensor:
    """On the host, where FlashInfer's planner reads them."""
    return torch.tensor([0, *accumulate(counts)], dtype=torch.int32)
