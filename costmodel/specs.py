"""Nominal numbers of devices and dense models: what a roofline and a memory plan start from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt

from costmodel.names import known_names

BF16_BYTES = 2
Spec = TypeVar("Spec")


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DeviceSpec(_Spec):
    """Data-sheet values: dense bf16, no sparsity; nothing reaches them."""

    name: str
    flops_per_s: PositiveFloat
    memory_bytes_per_s: PositiveFloat
    memory_bytes: PositiveInt
    link_bytes_per_s: PositiveFloat | None
    """To the other GPUs of a node, one direction; None if there is no link beside PCIe."""


class ModelSpec(_Spec):
    """A dense decoder with grouped-query attention and a gated MLP (gate and up in one GEMM)."""

    name: str
    layers: PositiveInt
    query_heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    hidden: PositiveInt
    intermediate: PositiveInt
    vocabulary: PositiveInt
    max_model_len: PositiveInt
    """Longest sequence in tokens, by the published config."""

    @property
    def query_width(self) -> int:
        return self.query_heads * self.head_dim

    def kv_width(self, tensor_parallel: int = 1) -> int:
        """Values of K (or V) per token, layer and GPU: heads are replicated once there are more GPUs than heads."""
        return -(-self.kv_heads // tensor_parallel) * self.head_dim

    def kv_bytes_per_token(self, value_bytes: float = BF16_BYTES, tensor_parallel: int = 1) -> int:
        """KV bytes of one token on one GPU: 2 (K and V) * layers * KV heads * head size * bytes per value (case F6)."""
        return round(2 * self.layers * self.kv_width(tensor_parallel) * value_bytes)

    def gemms(self, tensor_parallel: int = 1) -> dict[str, tuple[int, int, int]]:
        """Per projection: (times per step, output width, input width) on one GPU."""
        share = tensor_parallel
        query, mlp = -(-self.query_width // share), -(-self.intermediate // share)
        return {
            "qkv": (self.layers, query + 2 * self.kv_width(share), self.hidden),
            "attention_out": (self.layers, self.hidden, query),
            "gate_up": (self.layers, 2 * mlp, self.hidden),
            "down": (self.layers, self.hidden, mlp),
            "logits": (1, -(-self.vocabulary // share), self.hidden),
        }

    @property
    def parameters(self) -> int:
        """Weights of embedding, projections, head and layer norms (biases and head norms, below 0.01 %, left out)."""
        projections = sum(times * wide * deep for times, wide, deep in self.gemms().values())
        return projections + self.vocabulary * self.hidden + (2 * self.layers + 1) * self.hidden


def _device(name: str, *, tflops: float, tb_per_s: float, memory_bytes: int, link_gb_per_s: float | None) -> DeviceSpec:
    return DeviceSpec(
        name=name,
        flops_per_s=tflops * 1e12,
        memory_bytes_per_s=tb_per_s * 1e12,
        memory_bytes=memory_bytes,
        link_bytes_per_s=None if link_gb_per_s is None else link_gb_per_s * 1e9,
    )


_GIB = 1 << 30

DEVICES: Mapping[str, DeviceSpec] = {
    # Apart from L4 (NVIDIA's data sheet) these are the nominal values of aiconfigurator's system files.
    spec.name: spec
    for spec in (
        _device("h100-sxm", tflops=989, tb_per_s=3.35, memory_bytes=80 * _GIB, link_gb_per_s=450),
        _device("h200-sxm", tflops=989, tb_per_s=4.8, memory_bytes=141 * _GIB, link_gb_per_s=450),
        _device("b200-sxm", tflops=2250, tb_per_s=7.7, memory_bytes=180 * _GIB, link_gb_per_s=900),
        _device("a100-sxm-80g", tflops=312, tb_per_s=2.039, memory_bytes=80 * _GIB, link_gb_per_s=300),
        _device("l40s", tflops=362.05, tb_per_s=0.864, memory_bytes=46_068 << 20, link_gb_per_s=None),
        _device("l4", tflops=121, tb_per_s=0.3, memory_bytes=24 * _GIB, link_gb_per_s=None),
    )
}


def _model(name: str, shape: tuple[int, int, int, int], widths: tuple[int, int, int], max_model_len: int) -> ModelSpec:
    """`shape`: layers, query heads, KV heads, head size; `widths`: hidden, intermediate, vocabulary."""
    layers, query_heads, kv_heads, head_dim = shape
    hidden, intermediate, vocabulary = widths
    return ModelSpec(
        name=name,
        layers=layers,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden=hidden,
        intermediate=intermediate,
        vocabulary=vocabulary,
        max_model_len=max_model_len,
    )


MODELS: Mapping[str, ModelSpec] = {
    # Attention shapes from a table of KV facts; widths from the models' published configs.
    spec.name: spec
    for spec in (
        _model("llama-3.1-8b", (32, 32, 8, 128), (4096, 14_336, 128_256), 131_072),
        _model("llama-3.1-70b", (80, 64, 8, 128), (8192, 28_672, 128_256), 131_072),
        _model("llama-3.1-405b", (126, 128, 8, 128), (16_384, 53_248, 128_256), 131_072),
        _model("llama-2-70b", (80, 64, 8, 128), (8192, 28_672, 32_000), 4096),
        _model("codellama-34b", (48, 64, 8, 128), (8192, 22_016, 32_000), 16_384),
        _model("qwen2.5-7b", (28, 28, 4, 128), (3584, 18_944, 152_064), 32_768),
        _model("qwen3-8b", (36, 32, 8, 128), (4096, 12_288, 151_936), 40_960),
        _model("qwen3-14b", (40, 40, 8, 128), (5120, 17_408, 151_936), 40_960),
        _model("qwen3-32b", (64, 64, 8, 128), (5120, 25_600, 151_936), 40_960),
    )
}


def device_spec(name: str) -> DeviceSpec:
    return _find("device", DEVICES, name)


def model_spec(name: str) -> ModelSpec:
    return _find("model", MODELS, name)


def _find(kind: str, known: Mapping[str, Spec], name: str) -> Spec:
    if name in known:
        return known[name]
    raise ValueError(f"unknown {kind} {name!r}: {known_names(name, known)}")
