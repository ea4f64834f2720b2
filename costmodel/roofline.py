"""The roofline model: every kernel takes the longer of its arithmetic and its memory traffic, by nominal numbers.

For devices and models that nobody has measured. The maximum is taken per GEMM group and per kind of attention, with
no smoothing: real kernels near the ridge are slower than either bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.curve import NS_PER_S, UNBOUNDED_TOKENS, CurveModel, KvCurve
from costmodel.features import quantities
from costmodel.graphs import GraphBuckets
from costmodel.shape import StepShape
from costmodel.specs import BF16_BYTES, DeviceSpec, ModelSpec

FLOPS_PER_MAC = 2


@dataclass(frozen=True, slots=True)
class RooflineAssumptions:
    """What nominal numbers do not say."""

    compute_ratio: float
    """Share of the peak FLOP/s that large GEMMs and attention reach."""
    memory_ratio: float
    """Share of the memory bandwidth that streaming kernels reach."""
    host_step_s: float
    host_request_s: float
    """Per request and step."""
    all_reduce_s: float
    """Latency of one all-reduce; there are two per layer with tensor parallelism."""


class RooflineModel(CurveModel):
    """`tensor_parallel` GPUs of one node, weights and KV in bf16. Norms, rope and the like are left out."""

    def __init__(
        self,
        device: DeviceSpec,
        model: ModelSpec,
        assumptions: RooflineAssumptions,
        *,
        tensor_parallel: int = 1,
        buckets: GraphBuckets | None = None,
    ) -> None:
        super().__init__(buckets)
        if tensor_parallel > 1 and device.link_bytes_per_s is None:
            raise ValueError(
                f"{device.name} has no link between GPUs: tensor_parallel must be 1, got {tensor_parallel}"
            )
        self._model = model
        self._assumed = assumptions
        self._flops_per_s = device.flops_per_s * assumptions.compute_ratio
        self._bytes_per_s = device.memory_bytes_per_s * assumptions.memory_ratio
        self._gemms = model.gemms(tensor_parallel)
        self._kv_bytes_per_token = model.kv_bytes_per_token(tensor_parallel=tensor_parallel)
        self._flops_per_pair = 2 * FLOPS_PER_MAC * model.layers * model.query_width / tensor_parallel
        self._all_reduces = 2 * model.layers if tensor_parallel > 1 else 0
        """After attention and after the MLP; each GPU sends and receives 2 (n - 1) / n of the data (ring)."""
        sent_share = 2 * (tensor_parallel - 1) / tensor_parallel
        self._all_reduce_s_per_row = sent_share * model.hidden * BF16_BYTES / (device.link_bytes_per_s or float("inf"))
        self._decode_s_per_kv_token = self._attention_s(pairs=1, kv_tokens=1)

    def price(self, shape: StepShape, padding_rows: int) -> KvCurve:
        base_s = sum(self._fixed_parts(shape, padding_rows).values())
        return ((UNBOUNDED_TOKENS, base_s * NS_PER_S, self._decode_s_per_kv_token * NS_PER_S),)

    def price_parts(self, shape: StepShape, padding_rows: int) -> dict[str, float]:
        kv_tokens = shape.decode_context_tokens + shape.decode_requests
        return {**self._fixed_parts(shape, padding_rows), "decode_attention": self._decode_s_per_kv_token * kv_tokens}

    def _fixed_parts(self, shape: StepShape, padding_rows: int) -> dict[str, float]:
        """Everything but the attention of decodes."""
        step = quantities(shape, padding_rows)
        parts = {"host": self._assumed.host_step_s + self._assumed.host_request_s * step.requests}
        if not step.gemm_rows:
            return parts
        for name in self._gemms:
            parts[name] = self._gemm_s(name, step.logit_rows if name == "logits" else step.gemm_rows)
        prefill_kv_tokens = sum(tokens + context for tokens, context in shape.prefill)
        parts["prefill_attention"] = self._attention_s(step.prefill_pairs, prefill_kv_tokens)
        verify_pairs = step.verify_extra_pairs + step.verify_kv_tokens - step.verify_extra_rows
        parts["verify_attention"] = self._attention_s(verify_pairs, step.verify_kv_tokens)
        all_reduce_s = self._assumed.all_reduce_s + self._all_reduce_s_per_row * step.gemm_rows
        parts["all_reduce"] = self._all_reduces * all_reduce_s
        return parts

    def _gemm_s(self, name: str, rows: int) -> float:
        times, wide, deep = self._gemms[name]
        flops = FLOPS_PER_MAC * rows * wide * deep
        moved = (wide * deep + rows * (wide + deep)) * BF16_BYTES
        return times * self._longer_s(flops, moved)

    def _attention_s(self, pairs: int, kv_tokens: int) -> float:
        """All layers: two products per pair, and every KV entry read once."""
        return self._longer_s(self._flops_per_pair * pairs, self._kv_bytes_per_token * kv_tokens)

    def _longer_s(self, flops: float, moved_bytes: float) -> float:
        return max(flops / self._flops_per_s, moved_bytes / self._bytes_per_s)
