"""What a request asks for where the trace does not say: `model_len`, `fixed:N`, `factor:F` or `true`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

import numpy as np

from workloads.trace import UNKNOWN, IntArray, Trace

RULES: Final = ("model_len", "fixed:N", "factor:F", "true")
_RULE = re.compile(r"(model_len|true)|(fixed):([0-9]{1,8})|(factor):([0-9]{1,3}(?:\.[0-9]{1,6})?)")
_REMARKS: Final = {
    "model_len": "max_model_len - prompt",
    "fixed": "the same for all",
    "factor": "a multiple of the true output, which no engine knows",
    "true": "an ORACLE: the true output, which no engine knows",
}


@dataclass(frozen=True, slots=True)
class MaxTokensRule:
    """A rule as parsed from its text."""

    kind: str
    amount: Fraction
    """Tokens for `fixed`, multiples of the true output for `factor`, else 0. Exact: 1.1 × 10 is 11, not 12."""

    @staticmethod
    def of(text: str) -> MaxTokensRule:
        """The rule that this text names; `ValueError` says what is allowed."""
        found = _RULE.fullmatch(text)
        if found is None:
            raise ValueError(f"max_tokens rule must be one of {', '.join(RULES)}, got {text!r}")
        kind = found[1] or found[2] or found[4]
        amount = Fraction(found[3] or found[5] or 0)
        if not found[1] and amount <= 0:
            raise ValueError(f"max_tokens rule {kind} must have a number > 0, got {text!r}")
        return MaxTokensRule(kind, amount)

    def asked(self, prompt_tokens: IntArray, output_tokens: IntArray, max_model_len: int | None) -> IntArray:
        """max_tokens >= 1 for each request. `model_len` alone needs `max_model_len`. Shape: (num_requests,)."""
        if self.kind == "true":
            return output_tokens
        if self.kind == "fixed":
            return np.full_like(output_tokens, int(self.amount))
        if self.kind == "factor":
            return -(-output_tokens * self.amount.numerator // self.amount.denominator)
        if max_model_len is None or max_model_len < 1:
            raise ValueError(f"max_tokens rule model_len needs max_model_len >= 1, got {max_model_len}")
        return np.maximum(max_model_len - prompt_tokens, 1)


def resolve_max_tokens(trace: Trace, rule: str = "model_len", *, max_model_len: int | None = None) -> Trace:
    """The trace with every UNKNOWN max_tokens filled by the rule, and a note. Values that the trace gives stay.

    `model_len` asks for at least 1, so that the engine refuses a prompt which leaves no room for what it is.
    An output longer than max_tokens will end there; the note counts these.
    """
    parsed = MaxTokensRule.of(rule)
    missing = trace.max_tokens == UNKNOWN
    if not missing.any():
        return trace
    asked = parsed.asked(trace.prompt_tokens, trace.output_tokens, max_model_len)
    filled = np.where(missing, asked, trace.max_tokens)
    cut = int(np.count_nonzero(missing & (trace.output_tokens > filled)))
    note = f"max_tokens of {np.count_nonzero(missing)} of {len(trace)} requests from {rule} ({_REMARKS[parsed.kind]})"
    if cut:
        note += f"; {cut} recorded outputs are longer"
    return replace(trace, max_tokens=filled, notes=(*trace.notes, note))
