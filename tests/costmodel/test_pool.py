"""The memory that is left for KV, and where none is."""

from __future__ import annotations

import pytest

from costmodel.pool import kv_pool
from costmodel.specs import device_spec, model_spec


def test_a_model_that_does_not_fit_the_device() -> None:
    with pytest.raises(ValueError, match=r"llama-3\.1-70b leaves no room for KV on one h100-sxm"):
        kv_pool(model_spec("llama-3.1-70b"), device_spec("h100-sxm"))


def test_two_devices_share_the_weights_and_the_kv_heads() -> None:
    """Llama-3.1-70B: 141 GB of weights fit two H200s, each with half the KV heads."""
    model, device = model_spec("llama-3.1-70b"), device_spec("h200-sxm")
    pool = kv_pool(model, device, 2)
    assert pool.bytes_per_token == model.kv_bytes_per_token() // 2
    assert any(item.num_bytes == -model.parameters for item in pool.arithmetic)  # 2 bytes each, half of them
