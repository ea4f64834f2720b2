"""Token-work: how much of a step's budget a token takes, in decode tokens of a stated kind (DESIGN.md, section 1).

The work of a batch is linear in what it computes and reads, so it adds up over items, and a prompt is the same work
however it is cut into chunks. What a step costs anyway (weights, launches, the host) is not work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costmodel.features import attention_pairs, quantities
from costmodel.model import CostModel
from costmodel.profile import Reference
from costmodel.shape import StepShape

Column = npt.NDArray[np.int64] | npt.NDArray[np.float64]

DEFAULT_REFERENCE = Reference(decode_requests=64, context_tokens=2048, prefill_chunk_tokens=2048, verify_width=4)


@dataclass(frozen=True, slots=True)
class TokenWork:
    """Weights in units of one decode token at the reference batch and context."""

    prefill_token: float
    prefill_pair: float
    """Per (query, key) pair of causal attention."""
    decode_request: float
    decode_kv_token: float
    """Per KV entry read."""
    verify_extra_row: float
    """Per verified token beyond a request's first, which is a decode."""
    verify_extra_pair: float

    def decode_work(self, requests: int, context_tokens: int) -> float:
        """`context_tokens`: sum over the requests; each also reads the entry it writes."""
        return self.decode_request * requests + self.decode_kv_token * (context_tokens + requests)

    def prefill_work(self, tokens: int, context_tokens: int) -> float:
        """A chunk of `tokens` behind `context_tokens` entries."""
        return self.prefill_token * tokens + self.prefill_pair * attention_pairs(tokens, context_tokens)

    def verify_work(self, width: int, context_tokens: int) -> float:
        """`width` tokens of one request (drafts + 1) behind `context_tokens` entries."""
        extra_pairs = attention_pairs(width, context_tokens) - (context_tokens + 1)
        extra = self.verify_extra_row * (width - 1) + self.verify_extra_pair * extra_pairs
        return self.decode_work(1, context_tokens) + extra

    def work(self, shape: StepShape) -> float:
        """The work of a whole step."""
        step = quantities(shape)
        kv_tokens = step.decode_kv_tokens + step.verify_kv_tokens - step.verify_extra_rows
        return (
            self.prefill_token * step.prefill_tokens
            + self.prefill_pair * step.prefill_pairs
            + self.decode_request * (step.decode_requests + step.verify_requests)
            + self.decode_kv_token * kv_tokens
            + self.verify_extra_row * step.verify_extra_rows
            + self.verify_extra_pair * step.verify_extra_pairs
        )

    def work_of_columns(
        self,
        *,
        prefill_tokens: Column,
        prefill_pairs: Column,
        decode_requests: Column,
        decode_context_tokens: Column,
    ) -> npt.NDArray[np.float64]:
        """The work of many steps without verification. Shape: (steps,), as are the arguments."""
        return np.asarray(
            self.prefill_token * prefill_tokens
            + self.prefill_pair * prefill_pairs
            + self.decode_request * decode_requests
            + self.decode_kv_token * (decode_context_tokens + decode_requests),
            dtype=np.float64,
        )


EQUAL_WORK = TokenWork(
    prefill_token=1.0,
    prefill_pair=0.0,
    decode_request=1.0,
    decode_kv_token=0.0,
    verify_extra_row=1.0,
    verify_extra_pair=0.0,
)
"""Every token counts the same: the teaching approximation."""


def token_work(model: CostModel, reference: Reference) -> TokenWork:
    """The weights of a model, as finite differences around the reference step.

    Differences and not derivatives, because GEMMs are flat below about 128 rows: the decode token over a doubling of
    the batch, its KV read over a doubling of the context, a prefill token over a whole chunk beside the batch, and a
    verified token over all requests verifying. The model should have no graph buckets: padding is not work.
    """
    requests, context = reference.decode_requests, reference.context_tokens
    chunk, width = reference.prefill_chunk_tokens, reference.verify_width

    def decodes(count: int, each: int, prefill: tuple[tuple[int, int], ...] = ()) -> float:
        return model.seconds(StepShape(prefill, count, count * each))

    def verifies(wide: int, each: int) -> float:
        return model.seconds(StepShape(verify=((wide, each),) * requests))

    batch_s = decodes(requests, context)
    unit_s = (decodes(2 * requests, context) - batch_s) / requests
    kv_s = (decodes(requests, 2 * context) - batch_s) / (requests * context)
    kv_s = min(kv_s, unit_s / (context + 1))  # below a kernel's floor reading is cheaper, but a decode is no gain
    chunk_s = decodes(requests, context, ((chunk, 0),))
    pair_s = (decodes(requests, context, ((chunk, context),)) - chunk_s) / (chunk * context)
    extra_s = (verifies(width, context) - verifies(1, context)) / (requests * (width - 1))
    longer_s = (verifies(width, 2 * context) - verifies(1, 2 * context)) / (requests * (width - 1))
    extra_pair_s = (longer_s - extra_s) / context
    first_pairs_each = context + (width + 2) / 2
    return TokenWork(
        prefill_token=((chunk_s - batch_s) / chunk - pair_s * (chunk + 1) / 2) / unit_s,
        prefill_pair=pair_s / unit_s,
        decode_request=1 - kv_s * (context + 1) / unit_s,
        decode_kv_token=kv_s / unit_s,
        verify_extra_row=(extra_s - extra_pair_s * first_pairs_each) / unit_s,
        verify_extra_pair=extra_pair_s / unit_s,
    )
