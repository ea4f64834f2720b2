"""What tests of the harness share: a model, limits and a header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from calibrate.cases import Limits
from calibrate.models import timed_model
from calibrate.records import DeviceInfo, Header, SoftwareInfo
from costmodel.specs import ModelSpec

MODEL = timed_model("small-llama")
LIMITS = Limits(
    max_tokens=2048,
    max_requests=128,
    max_context_tokens=4096,
    pool_tokens=65_536,
    block_tokens=16,
    block_bytes=16 * MODEL.kv_bytes_per_token(4),
)

TINY = ModelSpec(
    name="tiny",
    layers=2,
    query_heads=4,
    kv_heads=2,
    head_dim=8,
    hidden=32,
    intermediate=48,
    vocabulary=61,
    max_model_len=256,
)
"""Steps of a millisecond or two."""
TINY_LIMITS = Limits(
    max_tokens=128, max_requests=8, max_context_tokens=256, pool_tokens=2048, block_tokens=16, block_bytes=4096
)

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 61,
    "max_position_embeddings": 256,
    "torch_dtype": "bfloat16",
}


def config_file(directory: Path, **changes: Any) -> str:
    """A Hugging Face config.json of TINY; None removes a key."""
    path = directory / "config.json"
    raw = {key: value for key, value in (CONFIG | changes).items() if value is not None}
    path.write_text(json.dumps(raw), encoding="utf-8")
    return str(path)


def header(**changes: Any) -> Header:
    device = DeviceInfo(name="a cpu", kind="cpu", memory_bytes=1 << 30, threads=1, clocks_mhz={"at_start": 2000.0})
    fields: dict[str, Any] = {
        "device": device,
        "software": SoftwareInfo(python="3.11.9", torch="2.13.0", kernels="sdpa"),
        "model": MODEL,
        "dtype": "float32",
        "block_tokens": 16,
        "created": "2026-11-30",
        "seed": 0,
        "minutes": 3.0,
    }
    return Header(**fields | changes)
