"""Attention over scattered paged KV gives what dense attention gives: chunks with context, decodes, verifications."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.bias import causal_lower_right

from calibrate.kernels import PARTITION_TOKENS, TILE_PARTITIONS, TILE_ROWS, ChunkPlan, TorchPagedAttention
from calibrate.paged import BlockPool, PagedSequence
from calibrate.transformer import Transformer
from costmodel.specs import ModelSpec

BLOCK_TOKENS = 16
CPU = torch.device("cpu")
torch.set_num_threads(1)  # pytest runs several processes, and threads that share a core wait for each other


def model(query_heads: int = 4, kv_heads: int = 2, layers: int = 2) -> ModelSpec:
    return ModelSpec(
        name="test",
        layers=layers,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=8,
        hidden=32,
        intermediate=48,
        vocabulary=61,
        max_model_len=1024,
    )


def paged(spec: ModelSpec, num_blocks: int) -> TorchPagedAttention:
    return TorchPagedAttention(spec, num_blocks, BLOCK_TOKENS, dtype=torch.float32, device=CPU)


def dense_attention(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Plain causal softmax attention, the queries last. Shapes: (tokens, heads, size)."""
    group = queries.shape[1] // keys.shape[1]
    keys, values = (entries.repeat_interleave(group, dim=1) for entries in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries, keys) / math.sqrt(queries.shape[-1])
    seen = torch.ones(len(queries), len(keys), dtype=torch.bool).tril(len(keys) - len(queries))
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -math.inf).softmax(-1), values)


part = st.one_of(
    st.tuples(st.integers(1, 300), st.integers(0, 200), st.just(True)),
    st.tuples(st.just(1), st.integers(0, 400), st.just(False)),
    st.tuples(st.integers(2, 9), st.integers(0, 300), st.just(False)),
)
parts_of_a_step = st.lists(part, min_size=1, max_size=7)


def filled(batch: list[PagedSequence], attention: TorchPagedAttention, spec: ModelSpec) -> list[torch.Tensor]:
    """Write every sequence's keys and values into its blocks. Shape of each: (2, kv tokens, heads, size)."""
    contents = []
    for sequence in batch:
        entries = torch.randn(2, sequence.kv_tokens, spec.kv_heads, spec.head_dim)
        places = range(sequence.kv_tokens)
        slots = torch.tensor([sequence.table[p // BLOCK_TOKENS] * BLOCK_TOKENS + p % BLOCK_TOKENS for p in places])
        attention.write(1, entries[0], entries[1], slots)
        contents.append(entries)
    return contents


@settings(max_examples=60, deadline=None)
@given(
    parts=parts_of_a_step,
    heads=st.sampled_from([(4, 4), (4, 2), (4, 1), (6, 2)]),
    seed=st.integers(0, 1000),
    tile_partitions=st.sampled_from([1, 3, 32]),
    tile_rows=st.sampled_from([16, 128]),
)
def test_any_mixed_batch_attends_as_dense_attention_does(
    parts: list[tuple[int, int, bool]], heads: tuple[int, int], seed: int, tile_partitions: int, tile_rows: int
) -> None:
    torch.manual_seed(seed)
    with patch.dict(TILE_PARTITIONS, cpu=tile_partitions), patch.dict(TILE_ROWS, cpu=tile_rows):
        got, want = paged_and_dense(parts, heads, seed)
    assert got.shape == want.shape
    torch.testing.assert_close(got, want, atol=2e-5, rtol=2e-5)


def paged_and_dense(
    parts: list[tuple[int, int, bool]], heads: tuple[int, int], seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    spec = model(*heads)
    pool = BlockPool(300, BLOCK_TOKENS, seed)
    batch = pool.place(parts)
    attention = paged(spec, pool.num_blocks)
    contents = filled(batch, attention, spec)
    queries = torch.randn(sum(s.tokens for s in batch), spec.query_heads, spec.head_dim)
    got = attention.attend(1, queries, attention.plan(batch))
    rows = queries.split([s.tokens for s in batch])
    return got, torch.cat([dense_attention(q, kv[0], kv[1]) for q, kv in zip(rows, contents, strict=True)])


@pytest.mark.parametrize(
    "context", [0, PARTITION_TOKENS - 2, PARTITION_TOKENS - 1, PARTITION_TOKENS, 3 * PARTITION_TOKENS]
)
@pytest.mark.parametrize("width", [1, 2, 5])
def test_partition_edges(context: int, width: int) -> None:
    """Contexts that end just before, at and after a partition's end; rows of one verification may lie on both sides."""
    spec = model()
    pool = BlockPool(128, BLOCK_TOKENS, 3)
    batch = pool.place([(width, context, False), (width, 7, False)])
    attention = paged(spec, pool.num_blocks)
    contents = filled(batch, attention, spec)
    queries = torch.randn(2 * width, spec.query_heads, spec.head_dim)
    got = attention.attend(1, queries, attention.plan(batch))
    want = [dense_attention(queries[i * width : (i + 1) * width], *contents[i]) for i in range(2)]
    torch.testing.assert_close(got, torch.cat(want), atol=2e-5, rtol=2e-5)


def test_blocks_are_scattered_and_no_block_is_given_twice() -> None:
    pool = BlockPool(200, BLOCK_TOKENS, 0)
    batch = pool.place([(100, 900, True), (1, 500, False), (5, 700, False)])
    blocks = [block for sequence in batch for block in sequence.table]
    assert len(set(blocks)) == len(blocks) == 63 + 32 + 45
    neighbours = sum(b == a + 1 for a, b in pairwise(blocks))
    assert neighbours < 5
    with pytest.raises(MemoryError, match="needs 201 KV blocks, the pool has 200"):
        pool.place([(201 * BLOCK_TOKENS, 0, True)])


def run_whole(transformer: Transformer, tokens: list[int], pool: BlockPool) -> torch.Tensor:
    """Logits of the last token, the whole sequence in one first chunk."""
    return transformer.logits(transformer.prepare(tokens, pool.place([(len(tokens), 0, True)])))[-1]


def test_a_mixed_step_computes_what_each_request_alone_would() -> None:
    """Chunked prefill behind context, decodes and a verification in one pass: the logits of one-shot prefills."""
    torch.manual_seed(1)
    spec = model()
    pool = BlockPool(64, BLOCK_TOKENS, 5)
    transformer = Transformer(spec, paged(spec, pool.num_blocks), BLOCK_TOKENS, dtype=torch.float32, device=CPU)
    texts = [torch.randint(0, spec.vocabulary, (n,)).tolist() for n in (150, 90, 41, 200)]
    alone = [run_whole(transformer, text, pool) for text in texts]

    earlier, now = [100, 89, 40, 196], [50, 1, 1, 4]
    kinds = [True, False, False, False]
    # tables for the full lengths, so that both steps use the same blocks
    full = pool.place([(len(text), 0, True) for text in texts])
    first = [PagedSequence(e, 0, f.table, True) for e, f in zip(earlier, full, strict=True)]
    transformer.step([token for text, e in zip(texts, earlier, strict=True) for token in text[:e]], first)
    mixed = [PagedSequence(n, e, f.table, kind) for n, e, f, kind in zip(now, earlier, full, kinds, strict=True)]
    step = transformer.prepare([token for text, e in zip(texts, earlier, strict=True) for token in text[e:]], mixed)
    logits = transformer.logits(step)
    assert logits.shape == (1 + 1 + 1 + 4, spec.vocabulary)
    last_rows = [0, 1, 2, 6]
    torch.testing.assert_close(logits[last_rows], torch.stack(alone), atol=1e-4, rtol=1e-4)
    assert transformer.forward(step).tolist() == logits.argmax(-1).tolist()


def test_the_mask_that_cuda_gets_is_the_same() -> None:
    """On CUDA a chunk's mask is torch's `causal_lower_right`, which kernels know; here it is made a plain one."""
    spec = model()
    pool = BlockPool(64, BLOCK_TOKENS, 5)
    batch = pool.place([(20, 100, True)])
    attention = paged(spec, 64)
    queries = torch.randn(20, spec.query_heads, spec.head_dim)
    (chunk,) = attention.plan(batch)
    assert isinstance(chunk, ChunkPlan)
    biased = replace(chunk, mask=causal_lower_right(20, 120))
    torch.testing.assert_close(attention.attend(0, queries, [biased]), attention.attend(0, queries, [chunk]))


def test_bfloat16_stays_close_to_float32() -> None:
    torch.manual_seed(2)
    spec = model()
    pool = BlockPool(64, BLOCK_TOKENS, 5)
    batch = pool.place([(20, 100, True), (1, 300, False), (3, 200, False)])
    queries = torch.randn(24, spec.query_heads, spec.head_dim)
    attention, half = paged(spec, 64), TorchPagedAttention(spec, 64, BLOCK_TOKENS, dtype=torch.bfloat16, device=CPU)
    for sequence in batch:
        slots = torch.tensor([b * BLOCK_TOKENS + i for b in sequence.table for i in range(BLOCK_TOKENS)])
        keys, values = torch.randn(2, len(slots), spec.kv_heads, spec.head_dim)
        attention.write(0, keys, values, slots)
        half.write(0, keys.bfloat16(), values.bfloat16(), slots)
    want = attention.attend(0, queries, attention.plan(batch))
    got = half.attend(0, queries.bfloat16(), half.plan(batch))
    torch.testing.assert_close(got.float(), want, atol=0.05, rtol=0.05)
