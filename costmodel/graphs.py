"""CUDA-graph buckets: a captured batch size per graph, and what running between or beyond them costs."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Self

from costmodel.shape import StepShape

LARGEST_DEFAULT_SIZE = 512


def vllm_v1_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """vLLM V1's default sizes in tokens: 1, 2, 4, then by 8 below 256, then by 16, up to min(2 * max_num_seqs, 512)."""
    largest = min(2 * max_num_seqs, LARGEST_DEFAULT_SIZE)
    sizes = (1, 2, 4, *range(8, 256, 8), *range(256, LARGEST_DEFAULT_SIZE + 1, 16))
    return tuple(size for size in sizes if size <= largest)


@dataclass(frozen=True, slots=True)
class GraphBuckets:
    """Sizes (rows, ascending) with a captured graph; a step without prefill runs as the smallest that holds it."""

    sizes: tuple[int, ...]
    eager_penalty_s: float
    """Added to a step without prefill that no graph can hold: launches that nothing hides."""

    def __post_init__(self) -> None:
        if not self.sizes or self.sizes[0] < 1 or list(self.sizes) != sorted(set(self.sizes)):
            raise ValueError(f"graph sizes must be ascending, distinct and >= 1, got {list(self.sizes)}")
        if not 0 <= self.eager_penalty_s < float("inf"):
            raise ValueError(f"eager_penalty_s must be finite and >= 0, got {self.eager_penalty_s}")

    @classmethod
    def vllm_v1(cls, max_num_seqs: int, eager_penalty_s: float) -> Self:
        return cls(vllm_v1_sizes(max_num_seqs), eager_penalty_s)

    def pad(self, rows: int) -> int | None:
        """The rows that `rows` run as, or None where the step runs eagerly (not padded)."""
        place = bisect_left(self.sizes, rows)
        return self.sizes[place] if place < len(self.sizes) else None

    def padding(self, shape: StepShape) -> tuple[int, float]:
        """Rows that `shape` is padded with, and seconds to add where it runs eagerly.

        Padded rows are computed and mean nothing: they cost what rows and requests cost, but read no KV.
        """
        if shape.prefill:
            return 0, 0.0
        rows = shape.tokens
        padded = self.pad(rows) if rows else 0
        return (0, self.eager_penalty_s) if padded is None else (padded - rows, 0.0)
