"""Requests come by their steps, and equal names of blocks mean equal beginnings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sim.conformance.workload import Arrivals, Prompts, PromptSpec, prompt_tokens

segments = st.tuples(st.integers(1, 2), st.integers(0, 3), st.integers(1, 6)).map(list)
specs = st.lists(segments, min_size=1, max_size=4)


def tokens(spec: PromptSpec) -> list[tuple[int, int]]:
    return [(ns, at) for ns, start, n in spec for at in range(start, start + n)]


def test_arrivals_come_by_their_steps_in_order_of_ids() -> None:
    rows = [{"id": id, "arrive_step": step} for id, step in ((4, 0), (0, 5), (2, 3), (1, 0), (3, 9))]
    arrivals = Arrivals(rows)
    assert [row["id"] for row in arrivals.due(0)] == [1, 4]
    assert arrivals.due(2) == []
    assert [row["id"] for row in arrivals.due(7)] == [0, 2]
    assert arrivals
    assert [row["id"] for row in arrivals.due(9)] == [3]
    assert not arrivals
    assert len(rows) == 5


def test_full_blocks_are_named_and_others_are_private() -> None:
    prompts = Prompts(block_tokens=16)
    one, same, longer, other = (
        prompts.content(spec, owner=owner)
        for owner, spec in enumerate([[[1, 0, 40]], [[1, 0, 20], [1, 20, 20]], [[1, 0, 48]], [[2, 0, 16], [1, 16, 24]]])
    )
    assert one.ids == same.ids == longer.ids[:2]
    assert (one.shared_blocks, longer.shared_blocks, other.shared_blocks) == (2, 3, 2)
    assert not {*other.ids} & {*longer.ids}, "an equal block behind another beginning has another name"
    assert one.key(2) != same.key(2), "nobody else has a block that the prompt does not fill"


def test_a_prompt_shorter_than_a_block_has_no_shared_name() -> None:
    assert Prompts(block_tokens=16).content([[1, 0, 15]]).ids == ()


@given(st.lists(specs, min_size=2, max_size=4), st.integers(1, 4))
def test_names_agree_exactly_as_far_as_the_tokens_do(prompt_specs: list[PromptSpec], block_tokens: int) -> None:
    prompts = Prompts(block_tokens)
    contents = [prompts.content(spec) for spec in prompt_specs]
    for spec, content in zip(prompt_specs, contents, strict=True):
        assert len(tokens(spec)) == prompt_tokens(spec)
        assert content.shared_blocks == len(content.ids) == prompt_tokens(spec) // block_tokens
        for other_spec, other in zip(prompt_specs, contents, strict=True):
            for block, (mine, theirs) in enumerate(zip(content.ids, other.ids, strict=False), start=1):
                end = block * block_tokens
                assert (mine == theirs) == (tokens(spec)[:end] == tokens(other_spec)[:end])
