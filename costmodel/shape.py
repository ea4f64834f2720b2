"""What one forward pass computes, as far as its duration is concerned: a `StepShape` knows nothing of requests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StepShape:
    """The work of one forward pass. Treat it as immutable: it is built per step, so it is not frozen (that costs 3x).

    A *prefill chunk* computes `tokens` prompt rows behind `context` tokens that already have their KV. A *decode*
    computes one row and reads its whole context. A *verification* computes `width` rows (drafts + 1) of one request.
    Decodes are only ever needed as a sum, so a thousand of them cost as much to describe as one.
    """

    prefill: tuple[tuple[int, int], ...] = ()
    """Per chunk: (tokens computed in this step, tokens whose KV exists before it)."""
    decode_requests: int = 0
    decode_context_tokens: int = 0
    """Sum over decodes of the KV entries that exist before the step; each also reads the entry it writes."""
    verify: tuple[tuple[int, int], ...] = ()
    """Per verifying request: (width in tokens, tokens whose KV exists before the step)."""

    @property
    def tokens(self) -> int:
        """Rows of the step's GEMMs."""
        return self.prefill_tokens + self.decode_requests + sum(width for width, _ in self.verify)

    @property
    def prefill_tokens(self) -> int:
        return sum(tokens for tokens, _ in self.prefill)

    @property
    def requests(self) -> int:
        return len(self.prefill) + self.decode_requests + len(self.verify)

    def after(self, steps: int) -> StepShape:
        """The shape `steps` later in a stretch: every decode has one more token of context per step."""
        grown = self.decode_context_tokens + self.decode_requests * steps
        return StepShape(self.prefill, self.decode_requests, grown, self.verify)
