"""A small real decoder (Llama's layers, random weights) that runs a mixed batch over paged KV in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from calibrate.kernels import PagedAttention
from calibrate.paged import PagedSequence, Rows, batch_rows
from costmodel.specs import ModelSpec

ROPE_BASE = 10_000.0
WEIGHT_STD = 0.02
NORM_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Layer:
    """Shape of every projection: (output width, input width)."""

    qkv: torch.Tensor
    o: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    attention_norm: torch.Tensor
    mlp_norm: torch.Tensor


@dataclass(frozen=True, slots=True)
class StepInput:
    """What the host has made of a batch, on the device."""

    tokens: torch.Tensor
    rows: Rows
    plan: object


class Transformer:
    """Weights, rotary table and KV; `step` is everything an engine's worker does in one iteration."""

    def __init__(
        self,
        model: ModelSpec,
        attention: PagedAttention,
        block_tokens: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.model = model
        self.attention = attention
        self._block_tokens = block_tokens
        self._device = device
        random = torch.Generator(device).manual_seed(0)

        def weight(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=random, dtype=dtype, device=device) * WEIGHT_STD

        def ones() -> torch.Tensor:
            return torch.ones(model.hidden, dtype=dtype, device=device)

        self.embedding = weight(model.vocabulary, model.hidden)
        shapes = [(n, k) for _, n, k in model.gemms().values()]
        self.layers = []
        for _ in range(model.layers):
            qkv, o, gate_up, down = (weight(*shape) for shape in shapes[:-1])
            self.layers.append(Layer(qkv, o, gate_up, down, attention_norm=ones(), mlp_norm=ones()))
        self.lm_head = weight(*shapes[-1])
        self._norm = ones()
        self._cosine, self._sine = _rotary_table(model, dtype, device)

    def step(self, token_ids: Sequence[int], batch: Sequence[PagedSequence]) -> list[int]:
        """Prepare, run, and bring the next token of every logit row to the host."""
        sampled: list[int] = self.forward(self.prepare(token_ids, batch)).tolist()
        return sampled

    def prepare(self, token_ids: Sequence[int], batch: Sequence[PagedSequence]) -> StepInput:
        """The host's part."""
        tokens = torch.tensor(token_ids).to(self._device, non_blocking=True)
        return StepInput(tokens, batch_rows(batch, self._block_tokens, self._device), self.attention.plan(batch))

    def forward(self, step: StepInput) -> torch.Tensor:
        """The device's part: the next token of every logit row (greedy). Shape: (logit rows,)."""
        return self.logits(step).argmax(-1)

    @torch.inference_mode()
    def logits(self, step: StepInput) -> torch.Tensor:
        hidden = functional.embedding(step.tokens, self.embedding)
        cosine, sine = self._cosine[step.rows.positions], self._sine[step.rows.positions]
        for index, layer in enumerate(self.layers):
            hidden = hidden + self._attend(index, layer, _norm(hidden, layer.attention_norm), step, cosine, sine)
            gate, up = functional.linear(_norm(hidden, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + functional.linear(functional.silu(gate) * up, layer.down)
        return functional.linear(_norm(hidden[step.rows.logits], self._norm), self.lm_head)

    def _attend(
        self, index: int, layer: Layer, hidden: torch.Tensor, step: StepInput, cosine: torch.Tensor, sine: torch.Tensor
    ) -> torch.Tensor:
        model, rows = self.model, len(hidden)
        projected = functional.linear(hidden, layer.qkv)
        heads = projected.view(rows, model.query_heads + 2 * model.kv_heads, model.head_dim)
        queries, keys, values = heads.tensor_split((model.query_heads, model.query_heads + model.kv_heads), dim=1)
        self.attention.write(index, rotated(keys, cosine, sine), values, step.rows.slots)
        attended = self.attention.attend(index, rotated(queries, cosine, sine), step.plan)
        return functional.linear(attended.reshape(rows, model.query_width), layer.o)


def _norm(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(hidden, weight.shape, weight, NORM_EPS)


def _rotary_table(model: ModelSpec, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine by position. Shape of each: (max_model_len, 1, head size / 2)."""
    frequency = ROPE_BASE ** -(torch.arange(0, model.head_dim, 2, device=device) / model.head_dim)
    angle = torch.arange(model.max_model_len, device=device)[:, None, None] * frequency
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotated(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding, halves paired as in Llama. Shape: heads (rows, heads, head size)."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
