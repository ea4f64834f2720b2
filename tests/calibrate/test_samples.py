"""The grid of steps: within the pool and the stated range, and covering it."""

from __future__ import annotations

from calibrate.samples import MAX_CONTEXT_TOKENS, MAX_DECODE_REQUESTS, MAX_PREFILL_TOKENS, samples

POOL_TOKENS = 429_408


def test_every_step_fits_the_pool_and_the_range() -> None:
    for sample in samples(POOL_TOKENS):
        shape = sample.shape
        held = sum(sum(chunk) for chunk in shape.prefill) + shape.decode_context_tokens + shape.decode_requests
        assert held <= POOL_TOKENS
        assert shape.prefill_tokens <= MAX_PREFILL_TOKENS
        assert shape.decode_requests <= MAX_DECODE_REQUESTS
        assert all(tokens + context <= MAX_CONTEXT_TOKENS for tokens, context in shape.prefill)


def test_the_corners_are_there() -> None:
    shapes = [sample.shape for sample in samples(POOL_TOKENS)]
    assert max(shape.decode_requests for shape in shapes) == MAX_DECODE_REQUESTS
    assert max(shape.prefill_tokens for shape in shapes) == MAX_PREFILL_TOKENS
    longest = max(shape.decode_context_tokens // max(1, shape.decode_requests) for shape in shapes)
    assert longest == MAX_CONTEXT_TOKENS - 1
    assert max(context for shape in shapes for _, context in shape.prefill) > 100_000


def test_regions_are_bands_and_steps_are_distinct() -> None:
    found = samples(POOL_TOKENS)
    regions = {sample.region for sample in found}
    assert "decode, 16-127 requests, >= 2048 context" in regions
    assert "prefill, < 256 tokens, < 8192 context" in regions
    assert "mixed, >= 64 requests, >= 512 tokens" in regions
    assert len({repr(sample.shape) for sample in found}) == len(found)


def test_a_smaller_pool_has_fewer_steps() -> None:
    assert 0 < len(samples(20_000)) < len(samples(POOL_TOKENS))
