"""vLLM V1's flags: what vLLM refuses to start with."""

from __future__ import annotations

import pytest

from sim.engines import UNKNOWN_HARDWARE, VllmV1


def test_without_chunks_a_step_holds_the_longest_prompt() -> None:
    """vLLM 0.32.0 `SchedulerConfig.verify_max_model_len`: the default grows, a smaller value is refused."""
    grown = VllmV1(enable_chunked_prefill=False, max_model_len=20_000).spec(UNKNOWN_HARDWARE)
    assert grown.budget.limit == 20_000
    assert VllmV1(max_model_len=20_000).spec(UNKNOWN_HARDWARE).budget.limit == 8192
    refused = VllmV1(enable_chunked_prefill=False, max_model_len=2048, max_num_batched_tokens=512)
    with pytest.raises(ValueError, match=r"max_num_batched_tokens must be >= 2048 \(max_model_len\) without chunked"):
        refused.spec(UNKNOWN_HARDWARE)
