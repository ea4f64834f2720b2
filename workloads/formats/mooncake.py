"""Mooncake: JSONL with `timestamp` (ms since the start), `input_length`, `output_length` and `hash_ids`.

A hash id stands for 512 tokens of the prompt, the last one for what is left.
Other traces use the same words with other units or another block size, so a file counts as Mooncake's by itself only
if its first object has exactly these keys. Source: kvcache-ai/Mooncake, FAST25-release/traces.
"""

from __future__ import annotations

from typing import Any, Final

from workloads.prefix import PrefixChain
from workloads.reading.csv_rows import missing_columns, unread_note
from workloads.reading.errors import RowError
from workloads.reading.json_rows import json_object
from workloads.reading.limits import ReadLimits
from workloads.reading.registry import register
from workloads.reading.row import Dialect, FirstLine, Row
from workloads.reading.values import MAX_NS, UNIT_NS, lengths, prefix_ids, whole_number

HASH_BLOCK_TOKENS: Final = 512
_TIME, _PROMPT, _OUTPUT, _HASHES = _KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
_MAX_MS: Final = MAX_NS // UNIT_NS["ms"]


class MooncakeParser:
    """Rows of a Mooncake file."""

    has_header = False
    arrival_column = _TIME
    from_first = False

    def __init__(self, first: FirstLine, limits: ReadLimits) -> None:
        if problem := missing_columns(_KEYS, first.keys):
            raise RowError(problem)
        self._limits = limits
        self._chain = PrefixChain()
        self._notes = unread_note(first.keys, _KEYS)

    def parse(self, line: str, /) -> Row:
        value = json_object(line, self._limits.json_depth).get
        arrival_ms = whole_number(_TIME, value(_TIME), 0, _MAX_MS)
        prompt_tokens, output_tokens = lengths(
            (_PROMPT, value(_PROMPT)), (_OUTPUT, value(_OUTPUT)), self._limits.tokens
        )
        hashes = _hash_ids(value(_HASHES), prompt_tokens)
        return Row(arrival_ms * UNIT_NS["ms"], prompt_tokens, output_tokens, prefix_ids=self._chain.chained(hashes))

    def group_tokens(self) -> int:
        return HASH_BLOCK_TOKENS

    def finish(self) -> tuple[str, ...]:
        return self._notes


def _hash_ids(value: Any, prompt_tokens: int) -> list[int]:
    hashes = prefix_ids(_HASHES, value)
    expected = -(-prompt_tokens // HASH_BLOCK_TOKENS)
    if len(hashes) != expected:
        raise RowError(
            f"{_HASHES} has {len(hashes)} ids, must have {expected} "
            f"(one per {HASH_BLOCK_TOKENS} of {prompt_tokens} tokens)"
        )
    return hashes


def _matches(first: FirstLine) -> bool:
    return first.is_json and set(first.keys) == set(_KEYS)


register(Dialect("mooncake", _matches, MooncakeParser))
