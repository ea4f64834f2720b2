"""Attention over paged KV in plain torch: chunks through SDPA, decodes and verifications in partitions of their KV.

Runs on the CPU and on CUDA. Rows of a batch are in batch order: chunks first, then decodes and verifications.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from calibrate.paged import PagedSequence
from costmodel.specs import ModelSpec

PARTITION_TOKENS = 128
"""KV entries per partition: reading a batch in equal pieces makes its cost follow the sum of the contexts, not the
longest one times the batch (vLLM's paged_attention_v2 and flash-decoding do the same)."""


LOWEST_SCORE = -1e30
"""Of hidden entries: a partition may be hidden from a row as a whole, and then has no highest score of its own."""
TILE_PARTITIONS = {"cpu": 32, "cuda": 2048}
"""Partitions gathered at a time, by device: few enough for a core's cache, or to fill a GPU and not its memory."""
TILE_ROWS = {"cpu": 128, "cuda": 1 << 30}
"""Rows of a chunk attended at a time. SDPA on the CPU computes what a mask hides; in tiles, little is hidden, and the
cost follows the (query, key) pairs, as that of the CUDA kernels, which skip it by themselves, does."""


class PagedAttention(Protocol):
    """The KV of all layers and the kernels that read it. `attend` needs the plan of the same batch."""

    def plan(self, batch: Sequence[PagedSequence], /) -> object:
        """What depends on the tables and lengths only: made once per step, used by every layer."""

    def keep_plan(self) -> None:
        """Later plans must leave the last one's buffers alone: a CUDA graph reads them."""

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, /) -> None:
        """Put new entries into their slots. Shape: keys and values (rows, KV heads, head size), slots (rows,)."""

    def attend(self, layer: int, queries: torch.Tensor, plan: object, /) -> torch.Tensor:
        """Causal attention of new rows to all of their sequence. Shape: (rows, query heads, head size), in and out."""


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """One prefill chunk, or a tile of its rows."""

    rows: slice
    blocks: torch.Tensor
    kv_tokens: int
    mask: torch.Tensor | None
    """None: plain causal, as there is no earlier context. Shape: (tokens, kv_tokens)."""


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """Decodes or verifications of one width, their KV in partitions."""

    rows: slice
    width: int
    blocks: torch.Tensor
    """Shape: (partitions * blocks per partition,)."""
    owner: torch.Tensor
    """Which sequence of the group a partition belongs to. Shape: (partitions,)."""
    hidden: torch.Tensor
    """Entries that a row does not see: later tokens and padding. Shape: (partitions, width, PARTITION_TOKENS)."""


Plan = list[ChunkPlan | PartitionPlan]


class TorchPagedAttention:
    """Keys and values per layer. Shape of each: (KV heads, blocks, block_tokens, head size)."""

    def __init__(
        self, model: ModelSpec, num_blocks: int, block_tokens: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (model.kv_heads, num_blocks, block_tokens, model.head_dim)
        self._keys = [torch.randn(shape, dtype=dtype, device=device) for _ in range(model.layers)]
        self._values = [torch.randn(shape, dtype=dtype, device=device) for _ in range(model.layers)]
        self._block_tokens = block_tokens
        self._device = device

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        for cache, new in ((self._keys[layer], keys), (self._values[layer], values)):
            cache.flatten(1, 2).index_copy_(1, slots, new.transpose(0, 1))

    def keep_plan(self) -> None:
        """Every plan here has its own tensors."""

    def plan(self, batch: Sequence[PagedSequence]) -> Plan:
        plan: Plan = []
        start = 0
        for group in _groups(batch):
            rows = slice(start, start + sum(sequence.tokens for sequence in group))
            plan += self._chunk(group[0], start) if group[0].prompt else [self._partitions(group, rows)]
            start = rows.stop
        return plan

    def _chunk(self, chunk: PagedSequence, start: int) -> list[ChunkPlan]:
        """A chunk in tiles, each of which sees the context and all rows before its own."""
        tile = TILE_ROWS[self._device.type]
        tiles = []
        for first in range(0, chunk.tokens, tile):
            rows = min(tile, chunk.tokens - first)
            context = chunk.context + first
            blocks = chunk.table[: -(-(context + rows) // self._block_tokens)]
            mask = self._causal_mask(rows, context) if context else None
            place = slice(start + first, start + first + rows)
            tiles.append(ChunkPlan(place, torch.from_numpy(blocks).to(self._device), context + rows, mask))
        return tiles

    def _causal_mask(self, rows: int, context: int) -> torch.Tensor:
        if self._device.type == "cuda":
            return causal_lower_right(rows, context + rows)
        # made once per step, as no kernel here knows the pattern by itself
        last_seen = torch.arange(context, context + rows)[:, None]
        return torch.arange(context + rows) <= last_seen

    def _partitions(self, group: Sequence[PagedSequence], rows: slice) -> PartitionPlan:
        each = PARTITION_TOKENS // self._block_tokens
        counts = np.array([-(-len(sequence.table) // each) for sequence in group])
        starts = counts.cumsum() - counts
        # what pads a table is hidden: any block will do
        blocks = np.repeat([sequence.table[0] for sequence in group], counts * each)
        for sequence, start in zip(group, (starts * each).tolist(), strict=True):
            blocks[start : start + len(sequence.table)] = sequence.table
        first_tokens = (np.arange(counts.sum()) - np.repeat(starts, counts)) * PARTITION_TOKENS
        contexts = np.repeat([sequence.context for sequence in group], counts)
        owner = np.repeat(np.arange(len(group)), counts)
        placed, mine, ahead = (torch.from_numpy(a).to(self._device) for a in (blocks, owner, contexts - first_tokens))
        width = group[0].tokens
        seen = ahead[:, None] + torch.arange(1, width + 1, device=self._device)
        hidden = torch.arange(PARTITION_TOKENS, device=self._device) >= seen[:, :, None]
        return PartitionPlan(rows, width, placed, mine, hidden)

    def attend(self, layer: int, queries: torch.Tensor, plan: object) -> torch.Tensor:
        assert isinstance(plan, list)
        parts = [self._attend_part(layer, queries[part.rows], part) for part in plan]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_part(self, layer: int, queries: torch.Tensor, part: ChunkPlan | PartitionPlan) -> torch.Tensor:
        if isinstance(part, PartitionPlan):
            return partitioned_attention(queries, self._keys[layer], self._values[layer], part)
        caches = (self._keys[layer], self._values[layer])
        keys, values = (gathered(cache, part.blocks)[None, :, : part.kv_tokens] for cache in caches)
        attended = functional.scaled_dot_product_attention(
            queries.transpose(0, 1)[None], keys, values, part.mask, is_causal=part.mask is None, enable_gqa=True
        )
        return attended[0].transpose(0, 1)


def gathered(cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """The entries of scattered blocks, side by side. Shape: (KV heads, entries, head size)."""
    return cache.index_select(1, blocks).flatten(1, 2)


def partitioned_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, part: PartitionPlan
) -> torch.Tensor:
    """Every partition on its own, a tile of them at a time, then the softmax over a sequence's partitions put together.

    `keys` and `values` are a layer's whole cache.
    """
    kv_heads, head_dim = keys.shape[0], keys.shape[-1]
    sequences, group = len(queries) // part.width, queries.shape[1] // kv_heads
    # (sequences, width, KV heads, group, head size) -> (KV heads, sequences, width * group, head size)
    by_head = queries.reshape(sequences, part.width, kv_heads, group, head_dim).permute(2, 0, 1, 3, 4).flatten(2, 3)
    size = TILE_PARTITIONS[queries.device.type]
    blocks = part.blocks.view(len(part.owner), -1)
    tiles = []
    for start in range(0, len(part.owner), size):
        tile = slice(start, start + size)
        mine = blocks[tile].flatten()
        tile_queries = by_head[:, part.owner[tile]]
        tiles.append(_attend_tile(tile_queries, gathered(keys, mine), gathered(values, mine), part.hidden[tile]))
    highest, total, attended = (torch.cat(pieces, dim=1) for pieces in zip(*tiles, strict=True))
    combined = _combined(highest, total, attended, part.owner, sequences).to(queries.dtype)
    by_row = combined.view(kv_heads, sequences, part.width, group, head_dim).permute(1, 2, 0, 3, 4)
    return by_row.reshape(len(queries), -1, head_dim)


def _attend_tile(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, hidden: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Softmax within each partition, not yet divided: its highest score, sum of weights, and weighted values.

    Shape: queries (KV heads, partitions, rows, head size), keys and values (KV heads, partitions * entries, head size).
    """
    kv_heads, partitions, rows, head_dim = queries.shape
    keys, values = (entries.view(kv_heads, partitions, PARTITION_TOKENS, head_dim) for entries in (keys, values))
    scores = (queries @ keys.transpose(-1, -2)).float() * (1 / math.sqrt(head_dim))
    width = hidden.shape[1]
    by_width = scores.view(kv_heads, partitions, width, rows // width, PARTITION_TOKENS)
    by_width.masked_fill_(hidden[:, :, None], LOWEST_SCORE)
    highest = scores.amax(-1)
    weights = scores.sub_(highest[..., None]).exp_()
    return highest, weights.sum(-1), (weights.to(values.dtype) @ values).float()


def _combined(
    highest: torch.Tensor, total: torch.Tensor, attended: torch.Tensor, owner: torch.Tensor, sequences: int
) -> torch.Tensor:
    """Partitions of a sequence weighted by their share of its softmax. Shape: (KV heads, sequences, rows, size)."""
    kv_heads, partitions, rows = highest.shape
    of_sequence = highest.new_full((kv_heads, sequences, rows), LOWEST_SCORE)
    of_sequence.scatter_reduce_(1, owner[None, :, None].expand(kv_heads, partitions, rows), highest, "amax")
    share = (highest - of_sequence[:, owner]).exp_()
    sums = torch.zeros_like(of_sequence).index_add_(1, owner, share * total)
    result = attended.new_zeros((kv_heads, sequences, rows, attended.shape[-1]))
    result.index_add_(1, owner, share[..., None] * attended)
    return result / sums[..., None]


def _groups(batch: Sequence[PagedSequence]) -> list[list[PagedSequence]]:
    """Neighbours that one kernel call takes: every chunk alone, decodes and verifications by width."""
    groups: list[list[PagedSequence]] = []
    for sequence in batch:
        last = groups[-1][-1] if groups else None
        if last and not sequence.prompt and not last.prompt and sequence.tokens == last.tokens:
            groups[-1].append(sequence)
        else:
            groups.append([sequence])
    return groups
