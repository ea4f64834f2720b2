"""Which model's shapes are timed: a name, or a Hugging Face `config.json` of a dense Llama-like decoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from costmodel.names import known_names
from costmodel.specs import MODELS, ModelSpec

LARGEST_CONFIG_BYTES = 1 << 20

CPU_MODELS: Mapping[str, ModelSpec] = {
    # Small enough that a step takes milliseconds on two cores; the proportions are Llama 3's (GQA 4, MLP 2.75 wide).
    "small-llama": ModelSpec(
        name="small-llama",
        layers=4,
        query_heads=8,
        kv_heads=2,
        head_dim=32,
        hidden=256,
        intermediate=704,
        vocabulary=4096,
        max_model_len=4096,
    ),
}

CONFIG_FIELDS: Mapping[str, str] = {
    "layers": "num_hidden_layers",
    "query_heads": "num_attention_heads",
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "vocabulary": "vocab_size",
    "max_model_len": "max_position_embeddings",
}
NOT_DENSE = ("num_local_experts", "num_experts", "n_routed_experts", "kv_lora_rank", "ssm_state_size")
"""Keys of architectures that this decoder is not: mixtures of experts, latent attention, recurrent state."""


class ModelError(ValueError):
    """A model that is unknown, or a config that does not describe a dense Llama-like decoder."""


def timed_model(name_or_path: str) -> ModelSpec:
    """A model by name, or by a path that ends in .json."""
    if name_or_path.endswith(".json"):
        return _from_config(Path(name_or_path))
    known = {**CPU_MODELS, **MODELS}
    if name_or_path not in known:
        hint = known_names(name_or_path, known)
        raise ModelError(f"unknown model {name_or_path!r}: {hint}; a config's path must end in .json")
    return known[name_or_path]


def _from_config(path: Path) -> ModelSpec:
    with path.open("rb") as file:
        text = file.read(LARGEST_CONFIG_BYTES + 1)
    if len(text) > LARGEST_CONFIG_BYTES:
        raise ModelError(f"{path.name}: is larger than {LARGEST_CONFIG_BYTES} bytes, so not a model's config")
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path.name}: not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ModelError(f"{path.name}: must be an object with {', '.join(CONFIG_FIELDS.values())}")
    return _spec(raw, path)


def _spec(raw: dict[str, Any], path: Path) -> ModelSpec:
    for key in NOT_DENSE:
        if raw.get(key):
            raise ModelError(f"{path.name}: {key}={raw[key]!r:.40}: only dense decoders with plain attention are timed")
    for key in CONFIG_FIELDS.values():
        if type(raw.get(key)) is not int or raw[key] < 1:
            raise ModelError(f"{path.name}: {key} must be a whole number >= 1, got {raw.get(key)!r:.40}")
    values = {name: raw[key] for name, key in CONFIG_FIELDS.items()}
    kv_heads = raw.get("num_key_value_heads") or raw["num_attention_heads"]
    head_dim = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
    published = str(raw.get("_name_or_path") or path.stem).rstrip("/").rpartition("/")[2]
    try:
        spec = ModelSpec(name=published, kv_heads=kv_heads, head_dim=head_dim, **values)
    except ValidationError as error:
        first = error.errors()[0]
        raise ModelError(f"{path.name}: {first['loc'][0]}: {first['msg']}") from None
    if spec.query_heads % spec.kv_heads or spec.head_dim % 2:
        raise ModelError(
            f"{path.name}: query heads ({spec.query_heads}) must be a multiple of KV heads ({spec.kv_heads})"
            f" and the head size ({spec.head_dim}) even"
        )
    return spec
