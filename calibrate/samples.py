"""The steps a profile is fitted to: a fixed grid over what a server meets, by region."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from costmodel.shape import StepShape

MAX_CONTEXT_TOKENS = 131_072
MAX_PREFILL_TOKENS = 16_384
MAX_DECODE_REQUESTS = 1024

DECODE_REQUESTS = (
    *(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256),
    *(320, 384, 448, 512, 640, 768, 896, MAX_DECODE_REQUESTS),
)
DECODE_CONTEXTS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, MAX_CONTEXT_TOKENS - 1)
CHUNK_TOKENS = (
    *(1, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048),
    *(3072, 4096, 6144, 8192, 12_288, MAX_PREFILL_TOKENS),
)
CHUNK_CONTEXTS = (0, 256, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 114_688)
CHUNKS_PER_STEP = (1, 2, 4, 8, 16)
LONGEST_SHARED_CONTEXT = 4096
"""Steps with several chunks: up to this context each."""
MIXED_CHUNK_TOKENS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
MIXED_CHUNK_CONTEXTS = (0, 2048, 16_384, 65_536)
MIXED_DECODE_REQUESTS = (1, 4, 16, 32, 64, 128, 256, 512, 1000)
MIXED_DECODE_CONTEXTS = (128, 512, 2048, 8192)


@dataclass(frozen=True, slots=True)
class Sample:
    shape: StepShape
    region: str
    """What is held out together when the fit is tested."""


def samples(pool_tokens: int) -> list[Sample]:
    """All steps whose KV fits a pool of so many tokens."""
    return [*_decodes(pool_tokens), *_prefills(pool_tokens), *_mixed(pool_tokens)]


def _decodes(pool_tokens: int) -> Iterator[Sample]:
    for requests in DECODE_REQUESTS:
        for context in DECODE_CONTEXTS:
            if requests * (context + 1) <= pool_tokens:
                size = band(requests, "requests", (16, 128))
                region = f"decode, {size}, {band(context, 'context', (2048,))}"
                yield Sample(StepShape((), requests, requests * context), region)


def _prefills(pool_tokens: int) -> Iterator[Sample]:
    for tokens in CHUNK_TOKENS:
        for context in CHUNK_CONTEXTS:
            for chunks in CHUNKS_PER_STEP:
                long = chunks > 1 and context > LONGEST_SHARED_CONTEXT
                total = tokens * chunks
                if long or total > MAX_PREFILL_TOKENS or total + context * chunks > pool_tokens:
                    continue
                if tokens + context <= MAX_CONTEXT_TOKENS:
                    region = f"prefill, {band(total, 'tokens', (256, 2048))}, {band(context, 'context', (8192,))}"
                    yield Sample(StepShape(((tokens, context),) * chunks), region)


def _mixed(pool_tokens: int) -> Iterator[Sample]:
    for tokens in MIXED_CHUNK_TOKENS:
        for chunk_context in MIXED_CHUNK_CONTEXTS:
            for requests in MIXED_DECODE_REQUESTS:
                for context in MIXED_DECODE_CONTEXTS:
                    if tokens + chunk_context + requests * (context + 1) <= pool_tokens:
                        shape = StepShape(((tokens, chunk_context),), requests, requests * context)
                        size = band(requests, "requests", (64,))
                        yield Sample(shape, f"mixed, {size}, {band(tokens, 'tokens', (512,))}")


def band(value: int, unit: str, edges: tuple[int, ...]) -> str:
    """The half-open band that a value is in, as text: `16-127 requests`."""
    bounds = (None, *edges, None)
    for low, high in pairwise(bounds):
        if high is None or value < high:
            if low is None:
                return f"< {high} {unit}"
            return f">= {low} {unit}" if high is None else f"{low}-{high - 1} {unit}"
    raise AssertionError("the last band has no upper end")
