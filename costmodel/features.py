"""What a step's duration is linear in: the one feature function of fitting and of prediction.

A step is first reduced to a few exact integers, its *quantities*. A *feature* is one quantity, or what it has beyond a
knee (a hinge), so a model that is linear in features is a sum of piecewise linear curves, one per quantity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from costmodel.shape import StepShape


class Quantities(NamedTuple):
    """Everything about a step that may cost time. Exact integers; only the last two change within a stretch."""

    steps: int
    """1, also for a step without tokens: what the host does anyway."""
    device_steps: int
    """1 if the step has tokens: weights are read, kernels launched."""
    requests: int
    """With the padding of a CUDA graph, as all rows; KV reads and `decode_requests` are without."""
    gemm_rows: int
    """Rows of the projections: prefill tokens + decodes + verified tokens."""
    logit_rows: int
    """Rows of the language model head: one per chunk (also of unfinished prompts, as vLLM), decode, verified token."""
    prefill_steps: int
    """1 if the step has a prefill chunk."""
    prefill_chunks: int
    prefill_tokens: int
    prefill_pairs: int
    """(Query, key) pairs of causal attention: tokens * context + tokens * (tokens + 1) / 2 per chunk."""
    prefill_hidden_pairs: int
    """Pairs above the diagonal, tokens * (tokens - 1) / 2, of chunks with earlier context: a kernel that knows causal
    prompts only gets such a chunk with a mask, and computes what the mask hides."""
    prefill_kv_tokens: int
    """KV entries read by chunks: context + tokens each, read once for all rows of a chunk."""
    decode_steps: int
    """1 if the step has a decode or a verification."""
    decode_requests: int
    decode_rows: int
    """As `decode_requests`, with padding."""
    verify_requests: int
    verify_extra_rows: int
    """Rows of verifications after the first of each request, which is what a decode would have."""
    verify_extra_pairs: int
    """(Query, key) pairs of those rows."""
    verify_kv_tokens: int
    """KV entries read by verifications: context + width each, read once for all rows of a request."""
    mixed_decode_kv_tokens: int
    """As `decode_kv_tokens` where the step also has a prefill chunk, else 0: beside a chunk they cost more (1.4 to 2.9
    times as much on one device, COSTMODEL.md)."""
    decode_kv_tokens: int
    """KV entries read by decodes: context + 1 each."""


KV_QUANTITIES = ("mixed_decode_kv_tokens", "decode_kv_tokens")
"""Those that grow within a stretch, by the number of decodes per step."""
QUANTITY_NAMES: tuple[str, ...] = Quantities._fields


def attention_pairs(tokens: int, context_tokens: int) -> int:
    """(Query, key) pairs of `tokens` causal rows behind `context_tokens` entries."""
    return tokens * context_tokens + tokens * (tokens + 1) // 2


def quantities(shape: StepShape, padding_rows: int = 0) -> Quantities:
    """`padding_rows`: what a CUDA graph computes beyond the shape."""
    return Quantities(*quantity_row(shape, padding_rows))


def quantity_row(shape: StepShape, padding_rows: int = 0) -> tuple[int, ...]:
    """`quantities` as a plain tuple in the order of QUANTITY_NAMES: several times cheaper to make."""
    prefill_tokens = prefill_pairs = prefill_context = hidden_pairs = 0
    for tokens, context in shape.prefill:
        prefill_tokens += tokens
        prefill_context += context
        prefill_pairs += tokens * context + tokens * (tokens + 1) // 2
        if context:
            hidden_pairs += tokens * (tokens - 1) // 2
    verify_rows = verify_pairs = verify_context = 0
    for width, context in shape.verify:
        verify_rows += width
        verify_pairs += (width - 1) * context + width * (width + 1) // 2 - 1
        verify_context += context
    chunks, verifies, decodes = len(shape.prefill), len(shape.verify), shape.decode_requests
    decode_rows = decodes + padding_rows
    rows = prefill_tokens + decode_rows + verify_rows
    kv_tokens = shape.decode_context_tokens + decodes
    return (
        1,
        1 if rows else 0,
        chunks + decode_rows + verifies,
        rows,
        chunks + decode_rows + verify_rows,
        1 if chunks else 0,
        chunks,
        prefill_tokens,
        prefill_pairs,
        hidden_pairs,
        prefill_context + prefill_tokens,
        1 if decodes or verifies else 0,
        decodes,
        decode_rows,
        verifies,
        verify_rows - verifies,
        verify_pairs,
        verify_context + verify_rows,
        kv_tokens if chunks else 0,
        kv_tokens,
    )


@dataclass(frozen=True, slots=True)
class Feature:
    """What a quantity has beyond a knee, in its unit: max(0, quantity - past - past_each * decode requests)."""

    quantity: str
    past: int = 0
    past_each: int = 0
    """Only for `decode_kv_tokens`: the knee also moves by so many tokens per decoding request (a kernel's floor)."""

    def __post_init__(self) -> None:
        if self.quantity not in QUANTITY_NAMES:
            raise ValueError(f"unknown quantity {self.quantity!r}: known are {', '.join(QUANTITY_NAMES)}")
        if self.past < 0 or self.past_each < 0:
            raise ValueError(f"a knee must be >= 0, got past={self.past}, past_each={self.past_each}")
        if self.past_each and self.quantity != "decode_kv_tokens":
            raise ValueError(f"past_each is for decode_kv_tokens only, got it for {self.quantity}")

    @property
    def name(self) -> str:
        knee = f"_past_{self.past}" if self.past else ""
        return self.quantity + knee + (f"_past_{self.past_each}_each" if self.past_each else "")


def feature_values(shape: StepShape, features: Sequence[Feature], padding_rows: int = 0) -> list[float]:
    """The features of one step, in the order given."""
    measured = quantities(shape, padding_rows)
    return [
        float(max(0, getattr(measured, f.quantity) - f.past - f.past_each * measured.decode_requests)) for f in features
    ]


def quantity_matrix(shapes: Sequence[StepShape]) -> npt.NDArray[np.int64]:
    """Shape: (num_shapes, num_quantities), columns in the order of `QUANTITY_NAMES`."""
    rows = [quantities(shape) for shape in shapes]
    return np.array(rows, dtype=np.int64).reshape(len(rows), len(QUANTITY_NAMES))


def feature_matrix(shapes: Sequence[StepShape], features: Sequence[Feature]) -> npt.NDArray[np.float64]:
    """Shape: (num_shapes, num_features). Row by row equal to `feature_values`, bit for bit: all are integers."""
    table = quantity_matrix(shapes)
    column = QUANTITY_NAMES.index
    requests = table[:, column("decode_requests")]
    columns = [np.maximum(0, table[:, column(f.quantity)] - f.past - f.past_each * requests) for f in features]
    return np.array(columns, dtype=np.float64).reshape(len(features), len(shapes)).T
