"""Paged KV as an engine has it: scattered block tables, and the index tensors of one mixed batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from calibrate.tasks import TaskSpec

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PagedSequence:
    """One request's part of a step: `tokens` new rows behind `context` entries that are in its blocks."""

    tokens: int
    context: int
    table: IntArray
    """Its blocks in order, with room for the new tokens: an array, as engines keep it from step to step."""
    prompt: bool
    """A prefill chunk; else a decode (one token) or a verification (several)."""

    @property
    def kv_tokens(self) -> int:
        return self.context + self.tokens


class BlockPool:
    """Hands out blocks in an order that has nothing to do with their place in memory, as after hours of serving."""

    def __init__(self, num_blocks: int, block_tokens: int, seed: int) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        order = torch.Generator().manual_seed(seed)
        self._blocks: IntArray = torch.randperm(num_blocks, generator=order).numpy()

    def sequences(self, task: TaskSpec) -> list[PagedSequence]:
        """Tables for a step or an attention task, in batch order: chunks, decodes, verifications."""
        parts = [(tokens, context, True) for tokens, context in task.prefill]
        parts += [(1, context, False) for context in task.decode]
        parts += [(width, context, False) for width, context in task.verify]
        if task.kind == "prefill_attention":
            parts = [(task.tokens, task.context, True)]
        elif task.contexts:
            parts = [(task.width or 1, context, False) for context in task.contexts]
        return self.place(parts)

    def place(self, parts: Sequence[tuple[int, int, bool]]) -> list[PagedSequence]:
        """Every call begins with the whole pool free. Raises MemoryError if it is too small."""
        placed: list[PagedSequence] = []
        used = 0
        for tokens, context, prompt in parts:
            need = -(-(tokens + context) // self.block_tokens)
            placed.append(PagedSequence(tokens, context, self._blocks[used : used + need], prompt))
            used += need
        if used > self.num_blocks:
            raise MemoryError(f"the step needs {used} KV blocks, the pool has {self.num_blocks}")
        return placed


@dataclass(frozen=True, slots=True)
class Rows:
    """Where a batch's rows are: their positions, their KV slots, and which of them get logits. On the device."""

    positions: torch.Tensor
    """Shape: (rows,)."""
    slots: torch.Tensor
    """Shape: (rows,): block * block_tokens + place in the block."""
    logits: torch.Tensor
    """Shape: (logit rows,): the last row of a chunk, every row of a decode or verification."""


def batch_rows(batch: Sequence[PagedSequence], block_tokens: int, device: torch.device) -> Rows:
    """The host's part of a step: what an engine's model runner computes before the forward, in arrays as there."""
    tokens, context = (np.array(values) for values in zip(*((s.tokens, s.context) for s in batch), strict=True))
    ends = tokens.cumsum()
    positions = np.arange(ends[-1]) - np.repeat(ends - tokens - context, tokens)
    lengths = np.array([len(sequence.table) for sequence in batch])
    first_block = np.repeat(lengths.cumsum() - lengths, tokens)
    blocks = np.concatenate([sequence.table for sequence in batch])[first_block + positions // block_tokens]
    wanted = np.repeat([not sequence.prompt for sequence in batch], tokens)
    wanted[ends - 1] = True
    slots = blocks * block_tokens + positions % block_tokens
    packed = torch.from_numpy(np.concatenate([positions, slots, np.flatnonzero(wanted)])).to(device, non_blocking=True)
    rows = len(positions)
    return Rows(packed[:rows], packed[rows : 2 * rows], packed[2 * rows :])
