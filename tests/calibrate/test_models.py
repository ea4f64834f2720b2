"""Which model is timed: by name or by a Hugging Face config.json of a dense decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calibrate.models import ModelError, timed_model
from tests.calibrate.small_run import config_file


def test_names_of_small_and_published_models() -> None:
    assert timed_model("small-llama").layers == 4
    assert timed_model("llama-3.1-8b").hidden == 4096
    with pytest.raises(ModelError, match=r"unknown model 'lama': known are small-llama, .* a config's path must end"):
        timed_model("lama")


def test_a_config_gives_the_shapes_and_fills_in_what_older_ones_leave_out(tmp_path: Path) -> None:
    spec = timed_model(config_file(tmp_path, _name_or_path="org/tiny-llama"))
    assert (spec.name, spec.layers, spec.kv_heads, spec.head_dim) == ("tiny-llama", 2, 2, 8)
    assert timed_model(config_file(tmp_path, num_key_value_heads=None)).kv_heads == 4
    assert timed_model(config_file(tmp_path, head_dim=64)).query_width == 256
    assert timed_model(config_file(tmp_path)).name == "config"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"hidden_size": None}, "config.json: hidden_size must be a whole number >= 1, got None"),
        ({"vocab_size": "many"}, "config.json: vocab_size must be a whole number >= 1, got 'many'"),
        ({"num_hidden_layers": 0}, "config.json: num_hidden_layers must be a whole number >= 1, got 0"),
        ({"num_key_value_heads": -1}, "config.json: kv_heads: Input should be greater than 0"),
        ({"num_key_value_heads": 3}, r"query heads \(4\) must be a multiple of KV heads \(3\)"),
        ({"head_dim": 33}, r"the head size \(33\) even"),
        ({"num_local_experts": 8}, "config.json: num_local_experts=8: only dense decoders"),
        ({"kv_lora_rank": 512}, "config.json: kv_lora_rank=512: only dense decoders"),
    ],
)
def test_a_config_of_something_else_is_refused(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        timed_model(config_file(tmp_path, **change))


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000, "\xff"])
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError, match=r"config.json: (not JSON|must be an object)"):
        timed_model(str(path))
