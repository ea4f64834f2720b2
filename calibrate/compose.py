"""Whole steps composed from operator times: what a forward pass would take on the device if its parts just add up.

What the tables do not hold is approximated, and said in `ASSUMED`, which goes into the profile.
"""

from __future__ import annotations

from collections.abc import Sequence

from calibrate.public_tables import OperatorTables, line_through
from costmodel.features import attention_pairs
from costmodel.shape import StepShape
from costmodel.specs import BF16_BYTES, DeviceSpec, ModelSpec

MEMORY_EFFICIENCY = 0.8
SMALL_KERNEL_S = 1.7e-6
"""Launch to launch inside a CUDA graph, for kernels that only move bytes."""
KERNELS_PER_LAYER = 5
"""Two norms, rope, KV write, activation."""
KERNELS_PER_STEP = 3
"""Embedding, final norm, sampler."""
SAMPLER_BYTES_PER_LOGIT = 10
"""bf16 read, fp32 written and read."""

ASSUMED = (
    "norms, rope, KV write, activation, embedding and sampler are not in the tables: "
    f"bytes / ({MEMORY_EFFICIENCY} * bandwidth) + {SMALL_KERNEL_S * 1e6:g} us each",
    "GEMM shapes that are not in the tables: power law between neighbours in n or k; "
    "the head as 128256/65536 times the widest one",
    "GEMM time never falls with rows (isotonic regression over the measured rows)",
    "prefill attention was measured without earlier context only: a chunk of T tokens behind C costs what a prompt of "
    "C + T costs beyond a prompt of C; beyond 16,384 tokens at the pair rate of the last two prompts measured",
    "decode attention at the batch's mean context (skew between requests ignored), linear between measured sizes",
    "parts of a mixed step add up, as if prefill and decode attention ran one after the other; on another device "
    "(RTX PRO 6000) decode KV cost 1.4-2.9 times as much beside a prefill chunk",
    "one GPU, no communication; clocks as in the tables",
)


class StepComposer:
    """Device seconds of a step, by part. Host overhead is not in it."""

    def __init__(self, tables: OperatorTables, model: ModelSpec, device: DeviceSpec) -> None:
        self.tables = tables
        self.model = model
        self.device = device
        self._bytes_per_s = MEMORY_EFFICIENCY * device.memory_bytes_per_s
        self._gemms = {
            name: (times, tables.gemm.curve(wide, deep)) for name, (times, wide, deep) in model.gemms().items()
        }

    def parts(self, shape: StepShape) -> dict[str, float]:
        """Seconds by part. Steps without tokens or with verification were not measured and have no composition."""
        logit_rows = len(shape.prefill) + shape.decode_requests
        rows = {name: logit_rows if name == "logits" else shape.tokens for name in self._gemms}
        return {
            **{name: self._gemm_s(name, count) for name, count in rows.items()},
            "small_kernels": self._small_kernels_s(shape.tokens, logit_rows),
            "prefill_attention": self.model.layers * self._prefill_s(shape.prefill),
            "decode_attention": self.model.layers * self._decode_s(shape),
        }

    def seconds(self, shape: StepShape) -> float:
        return sum(self.parts(shape).values())

    @property
    def small_kernels_s_per_row(self) -> float:
        """What one more row whose logits are wanted adds to the small kernels."""
        return self._small_kernels_s(1, 1) - self._small_kernels_s(0, 0)

    def _gemm_s(self, name: str, rows: int) -> float:
        times, curve = self._gemms[name]
        return times * line_through(rows, self.tables.gemm.sizes_m, curve)

    def _prefill_s(self, chunks: Sequence[tuple[int, int]]) -> float:
        """One layer: the kernel's floor for so many sequences, and what each chunk adds to its context."""
        if not chunks:
            return 0.0
        count = len(chunks)
        floor_s = self.tables.prefill.seconds(count, 1)

        def prompt_s(tokens: int) -> float:
            pairs = attention_pairs(tokens, 0)
            return self.tables.prefill.seconds(count, pairs) if tokens else floor_s

        return floor_s + sum(prompt_s(context + tokens) - prompt_s(context) for tokens, context in chunks) / count

    def _decode_s(self, shape: StepShape) -> float:
        count = shape.decode_requests
        return self.tables.decode.seconds(count, shape.decode_context_tokens / count) if count else 0.0

    def _small_kernels_s(self, rows: int, logit_rows: int) -> float:
        kernels = KERNELS_PER_LAYER * self.model.layers + KERNELS_PER_STEP
        moved = rows * self._bytes_per_row() + logit_rows * self.model.vocabulary * SAMPLER_BYTES_PER_LOGIT
        return kernels * SMALL_KERNEL_S + moved / self._bytes_per_s

    def _bytes_per_row(self) -> int:
        """Bytes that the small kernels of all layers read and write for one row."""
        model = self.model
        norm = 4 * model.hidden  # values: hidden and residual, read and written
        rope = 2 * (model.query_width + model.kv_width())
        kv_write = 4 * model.kv_width()
        activation = 3 * model.intermediate
        embedding = 2 * model.hidden
        layer = 2 * norm + rope + kv_write + activation
        return (model.layers * layer + norm + embedding) * BF16_BYTES
