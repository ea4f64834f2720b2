"""page-chunks: whole pages, one cut, and decodes that cost nothing unless they join prefills."""

from __future__ import annotations

import pytest

from sim.policies.pages import PageMeter
from sim.policies.registry import BUDGET


def admit(meter: PageMeter, want: int) -> int | None:
    tokens = meter.grant(want, 0, decode=False, admitting=True)
    if tokens:
        meter.spend(tokens, 0, decode=False)
    return tokens


def test_a_new_prompt_is_cut_at_the_end_of_a_page() -> None:
    """Pages of 16, chunk of 100: 40 counts as 48, which leaves 52: a prompt of 50 counts as 64 and is cut to 48."""
    meter = PageMeter(1000, 100, 16, chunked=True)
    assert [admit(meter, want) for want in (40, 50, 50)] == [40, 48, None]
    assert meter.has_left()


def test_who_goes_on_takes_what_is_left_to_the_token() -> None:
    meter = PageMeter(1000, 100, 16, chunked=True)
    assert meter.grant(150, 16, decode=False, admitting=False) == 100
    meter.spend(100, 16, decode=False)
    assert (meter.chunk_left, meter.has_left()) == (-12, False)
    meter.refund(100, 16, decode=False)
    assert meter.chunk_left == 100


def test_without_chunks_only_the_first_may_be_longer() -> None:
    """150 in all: 100 leave 50; one that counts 50 does not leave anything, 49 do."""
    for prompts, granted in (((200, 1), [200, None]), ((100, 50), [100, None]), ((100, 49, 1), [100, 49, None])):
        meter = PageMeter(150, 1 << 60, 1, chunked=False)
        assert [admit(meter, want) for want in prompts] == granted


def test_decodes_are_not_limited() -> None:
    meter = PageMeter(10, 10, 1, chunked=True)
    assert meter.spend_decodes(1000, 10**6)
    assert meter.grant(1, 5, decode=True, admitting=False) == 1
    assert meter.copy().chunk_left == 10


def test_senseless_parameters() -> None:
    for wrong in ({"max_input_tokens": 0}, {"chunk_tokens": -1}):
        with pytest.raises(ValueError, match="must be >="):
            BUDGET.make("page-chunks", **wrong)
