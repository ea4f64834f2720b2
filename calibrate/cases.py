"""What a run times and in which order: an endless list, any beginning of which covers the whole range.

Every family of cases walks its own low-discrepancy sequence over sizes on a logarithmic scale, and families take turns.
Most often come those that nothing public measures: mixed steps, chunks with earlier context, verification. The list
depends on the model, the limits and the seed alone, so an interrupted run finds its place again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from calibrate.tasks import GEMMS, TaskSpec
from costmodel.specs import ModelSpec

SHORTEST_CONTEXT = 16
WIDEST_VERIFY = 9
"""Eight drafts and the token they follow."""
MOST_CHUNKS = 4
EVEN_RATIO = 0.35
"""This share of the batches has equal contexts."""
LARGEST_SKEW = 1.5
"""Contexts of the most uneven batch span mean * exp(-LARGEST_SKEW) to mean * exp(LARGEST_SKEW), before cuts."""
HIGH_CORNER = 5
"""The case of a family that has every size at its largest."""
LARGEST_LINK_BYTES = 1 << 30

AGAIN = "again"
"""A step that was timed before, to see how the machine drifts."""
TURN = (
    *("mixed", "verify", "chunk", "mixed_verify", "decode", "prefill_attention"),
    *("mixed", "gemm", "verify_attention", "chunk", AGAIN, "mixed", "decode", "mixed_verify"),
    *("decode_attention", "first_chunk", "mixed", "gemm", "chunk", "verify", "link", AGAIN),
)
"""Families in the order of a turn, and repeats."""
STEPS_PER_REPEAT = 3
"""Every third step comes again, ever later in the run."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How large the cases get."""

    max_tokens: int
    """Rows of a step, as an engine's token budget."""
    max_requests: int
    max_context_tokens: int
    """Longest sequence, the step's own tokens included."""
    pool_tokens: int
    """KV that all sequences of a step may hold."""
    block_tokens: int
    block_bytes: int

    def mean_context(self, sequences: int, own_tokens: int, held_tokens: int = 0) -> int:
        """The longest mean context of so many sequences that the pool has room for, beside what is held already."""
        room = (self.pool_tokens - held_tokens) // sequences - own_tokens - self.block_tokens
        return max(1, min(room, self.max_context_tokens - own_tokens))


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a family's sequence: sizes in 0..1, by name, and its number."""

    index: int
    tokens: float
    context: float
    requests: float
    decode_context: float
    skew: float
    width: float
    split: float

    @property
    def chunk(self) -> float:
        """Chunks of a few tokens are rare in practice, so half of the chunks lie in the upper 40 % of the scale."""
        return math.pow(self.tokens, 0.7)

    def pick(self, low: int, high: int, size: float) -> int:
        """A whole number from low to high, evenly on a logarithmic scale."""
        high = max(low, high)
        return min(high, max(low, int(low * math.exp(size * math.log(high / low)) + 0.5)))


SIZES = 7
Family = Callable[[Point, ModelSpec, Limits], TaskSpec]


def cases(model: ModelSpec, limits: Limits, seed: int) -> Iterator[TaskSpec]:
    """All cases in order, without end."""
    walks = {name: _points(name, seed) for name in FAMILIES}
    steps: list[TaskSpec] = []
    repeats = 0
    for name in cycle(TURN):
        if name == AGAIN:
            yield steps[repeats * STEPS_PER_REPEAT]
            repeats += 1
            continue
        task = FAMILIES[name](next(walks[name]), model, limits)
        yield task
        if task.kind == "step":
            steps.append(task)


def _points(name: str, seed: int) -> Iterator[Point]:
    """The R sequence (M. Roberts 2018: powers of 1/x, x^(d+1) = x + 1), moved by the seed and the family's name."""
    x = 1.5
    for _ in range(60):
        x = (1 + x) ** (1 / (SIZES + 1))
    stride = (1 / x) ** np.arange(1, SIZES + 1)
    start = np.random.default_rng([seed, *name.encode()]).random(SIZES)
    index = 0
    while True:
        sizes = np.ones(SIZES) if index == HIGH_CORNER else (start + index * stride) % 1.0
        yield Point(index, *sizes.tolist())
        index += 1


def _chunks(
    p: Point, limits: Limits, total: int, *, first: bool, beside_tokens: int = 0
) -> tuple[tuple[int, int], ...]:
    """`total` prompt tokens in one chunk or several, each behind as much context, or none if they are the first.

    `beside_tokens`: what the rest of the step may hold of the pool.
    """
    count = min(total, 1 + int(max(0.0, p.split - 0.5) * 2 * (MOST_CHUNKS - 0.001)))
    sizes = [total // count + (1 if i < total % count else 0) for i in range(count)]
    longest = limits.mean_context(count, sizes[0], beside_tokens)
    context = 0 if first else p.pick(SHORTEST_CONTEXT, longest, p.context)
    return tuple((size, min(context, longest)) for size in sizes)


def _contexts(p: Point, limits: Limits, count: int, own_tokens: int, held_tokens: int = 0) -> tuple[int, ...]:
    """Contexts of `count` sequences, equal or spread around their mean, in mixed order."""
    longest = limits.mean_context(count, own_tokens, held_tokens)
    mean = min(longest, p.pick(SHORTEST_CONTEXT, longest, p.decode_context))
    skew = LARGEST_SKEW * max(0.0, p.skew - EVEN_RATIO) / (1 - EVEN_RATIO)
    spread = np.exp(skew * np.linspace(-1, 1, count)) if count > 1 else np.ones(1)
    values = np.minimum(mean * spread / spread.mean(), limits.max_context_tokens - own_tokens)
    order = np.random.default_rng(p.index).permutation(count)
    return tuple(max(1, int(values[i])) for i in order)


def _decode(p: Point, model: ModelSpec, limits: Limits) -> TaskSpec:
    count = p.pick(1, limits.max_requests, p.requests)
    return TaskSpec("step", decode=_contexts(p, limits, count, 1))


def _first_chunk(p: Point, model: ModelSpec, limits: Limits) -> TaskSpec:
    return TaskSpec("step", prefill=_chunks(p, limits, p.pick(1, _chunk_room(limits, 0), p.chunk), first=True))


def _chunk(p: Point, model: ModelSpec, limits: Limits) -> TaskSpec:
    return TaskSpec("step", prefill=_chunks(p, limits, p.pick(1, _chunk_room(limits, 0), p.chunk), first=False))


def _mixed(p: Point, model: ModelSpec, limits: Limits) -> TaskSpec:
    count = p.pick(1, min(limits.max_requests, limits.max_tokens // 2), p.requests)
    chunks = _chunks_beside(p, limits, count, first=p.context < EVEN_RATIO)
    return TaskSpec("step", prefill=chunks, decode=_contexts(p, limits, count, 1, _held(chunks, limits)))


def _chunks_beside(p: Point, limits: Limits, rows: int, *, first: bool) -> tuple[tuple[int, int], ...]:
    """Chunks that leave so many rows and half of the pool to the rest of the step."""
    total = p.pick(1, _chunk_room(limits, rows), p.chunk)
    return _chunks(p, limits, total, first=first, beside_tokens=limits.pool_tokens // 2)


def _verify(p: Point, model: ModelSpec, limits: Limits) -> TaskSpec:
    """Verifications of one width; in half the cases some requests have no drafts and decode."""
    verify = _verifications(p, limits, limits.max_tokens, 0)
    decodes = tuple(context for _, context in verify[: len(verify) // 4]) if p.split > 0.5 else ()
    return TaskSpec("step", decode=decodes, verify=verify[len(decodes) :])


def _mixed_verify(p: Point, model: ModelSpec, limits: Limits) -> TaskSpec:
    """A chunk, verifications and in half the cases decodes, in one pass."""
    chunks = _chunks_beside(p, limits, limits.max_tokens // 2, first=p.context < EVEN_RATIO)
    verify = _verifications(p, limits, limits.max_tokens // 2, _held(chunks, limits))
    decodes = tuple(context for _, context in verify[: len(verify) // 4]) if p.skew > 0.5 else ()
    return TaskSpec("step", prefill=chunks, decode=decodes, verify=verify[len(decodes) :])


def _verifications(p: Point, limits: Limits, rows: int, held_tokens: int) -> tuple[tuple[int, int], ...]:
    width = 2 + int(p.width * (WIDEST_VERIFY - 1.001))
    count = p.pick(1, min(limits.max_requests, rows // width), p.requests)
    return tuple((width, context) for context in _contexts(p, limits, count, width, held_tokens))


def _chunk_room(limits: Limits, rows: int) -> int:
    """Prompt tokens that a step has room for beside so many other rows, in a quarter of the pool."""
    return max(1, min(limits.max_tokens - rows, limits.max_context_tokens - 1, limits.pool_tokens // 4))


def _held(chunks: tuple[tuple[int, int], ...], limits: Limits) -> int:
    return sum(tokens + context + limits.block_tokens for tokens, context in chunks)


def _prefill_attention(p: Point, model: ModelSpec, limits: Limits) -> TaskSpec:
    tokens = p.pick(1, _chunk_room(limits, 0), p.tokens)
    room = limits.mean_context(1, tokens)
    return TaskSpec("prefill_attention", tokens=tokens, context=p.pick(SHORTEST_CONTEXT, room, p.context))


def _decode_attention(p: Point, model: ModelSpec, limits: Limits) -> TaskSpec:
    return TaskSpec("decode_attention", contexts=_decode(p, model, limits).decode)


def _verify_attention(p: Point, model: ModelSpec, limits: Limits) -> TaskSpec:
    verify = _verifications(p, limits, limits.max_tokens, 0)
    return TaskSpec("verify_attention", width=verify[0][0], contexts=tuple(context for _, context in verify))


def _gemm(p: Point, model: ModelSpec, limits: Limits) -> TaskSpec:
    """The model's projections in turn; the head sees a row per request or verified token."""
    place = p.index % len(GEMMS)
    _, n, k = list(model.gemms().values())[place]
    rows = limits.max_requests if GEMMS[place] == "lm_head" else limits.max_tokens
    return TaskSpec("gemm", gemm=GEMMS[place], rows=p.pick(1, rows, p.tokens), n=n, k=k)


LINK_KINDS = ("copy", "swap_out", "swap_in", "launch")


def _link(p: Point, model: ModelSpec, limits: Limits) -> TaskSpec:
    """KV blocks copied on the device and moved to the host and back, and what starting any kernel costs."""
    kind = LINK_KINDS[p.index % len(LINK_KINDS)]
    if kind == "launch":
        return TaskSpec(kind)
    largest = min(LARGEST_LINK_BYTES // limits.block_bytes, limits.pool_tokens // limits.block_tokens // 2)
    blocks = p.pick(1, largest, p.tokens)
    return TaskSpec(kind, num_blocks=blocks, num_bytes=blocks * limits.block_bytes)


FAMILIES: Mapping[str, Family] = {
    "mixed": _mixed,
    "mixed_verify": _mixed_verify,
    "chunk": _chunk,
    "verify": _verify,
    "decode": _decode,
    "first_chunk": _first_chunk,
    "prefill_attention": _prefill_attention,
    "verify_attention": _verify_attention,
    "decode_attention": _decode_attention,
    "gemm": _gemm,
    "link": _link,
}
