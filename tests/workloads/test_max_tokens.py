"""Rules for requests that name no max_tokens."""

from __future__ import annotations

import re

import numpy as np
import pytest

from workloads.max_tokens import resolve_max_tokens
from workloads.trace import UNKNOWN, Trace


def trace(prompts, outputs, max_tokens=None):
    def column(values):
        return np.array(values, dtype=np.int64)

    asked = [UNKNOWN] * len(prompts) if max_tokens is None else max_tokens
    return Trace("t", "made", column([0] * len(prompts)), column(prompts), column(outputs), column(asked))


def test_model_len_is_the_default_and_leaves_at_least_1():
    """Case C4's prompts: no negative rest; the engine refuses 3474 and 2048 itself."""
    filled = resolve_max_tokens(trace([3474, 2000, 2047, 2048, 1988], [1] * 5), max_model_len=2048)
    assert filled.max_tokens.tolist() == [1, 48, 1, 1, 60]
    assert filled.notes == ("max_tokens of 5 of 5 requests from model_len (max_model_len - prompt)",)


def test_what_the_trace_says_stays():
    filled = resolve_max_tokens(trace([1, 1, 1], [5, 6, 7], [UNKNOWN, 3, UNKNOWN]), "fixed:6")
    assert filled.max_tokens.tolist() == [6, 3, 6]
    assert filled.notes == (
        "max_tokens of 2 of 3 requests from fixed:6 (the same for all); 1 recorded outputs are longer",
    )


def test_nothing_to_fill_changes_nothing():
    known = trace([1], [5], [3])
    assert resolve_max_tokens(known, "true") is known


def test_factor_is_exact():
    """As floats 1.1 × 10 is 11.000000000000002, whose ceiling is 12."""
    filled = resolve_max_tokens(trace([1] * 4, [1, 10, 11, 10_000_000]), "factor:1.1")
    assert filled.max_tokens.tolist() == [2, 11, 13, 11_000_000]
    assert "no engine knows" in filled.notes[0]


def test_true_is_marked_as_an_oracle():
    filled = resolve_max_tokens(trace([1, 1], [5, 6]), "true")
    assert filled.max_tokens.tolist() == [5, 6]
    assert filled.notes == (
        "max_tokens of 2 of 2 requests from true (an ORACLE: the true output, which no engine knows)",
    )


@pytest.mark.parametrize(
    "rule", ["", "fixed", "fixed:", "fixed:-1", "fixed:1.5", "factor:x", "factor:1e9", "true:1", "TRUE"]
)
def test_other_rules_are_refused(rule):
    message = re.escape(f"max_tokens rule must be one of model_len, fixed:N, factor:F, true, got {rule!r}")
    with pytest.raises(ValueError, match=message):
        resolve_max_tokens(trace([1], [1]), rule)


@pytest.mark.parametrize("rule", ["fixed:0", "factor:0", "factor:0.0"])
def test_amounts_must_be_positive(rule):
    kind = rule.partition(":")[0]
    with pytest.raises(ValueError, match=f"max_tokens rule {kind} must have a number > 0, got {rule!r}"):
        resolve_max_tokens(trace([1], [1]), rule)


@pytest.mark.parametrize("max_model_len", [None, 0])
def test_model_len_needs_to_know_it(max_model_len):
    with pytest.raises(ValueError, match=f"max_tokens rule model_len needs max_model_len >= 1, got {max_model_len}"):
        resolve_max_tokens(trace([1], [1]), max_model_len=max_model_len)
