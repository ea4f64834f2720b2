"""mini-runtime's recordings, block for block, played into the leaky tree store without an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.kv.leaky import LeakyTreeStore
from tests.sim.kv.leaky_bench import Prompts, blocks_of

SCENARIOS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "golden" / "mini_runtime.json").read_text())[
    "scenarios"
]


class Replay:
    """mini-runtime's calls in its order, as ENGINES.md tells it; what it decides otherwise is read from the recording.

    `groups`: blocks of decodes are taken without saying whose.
    """

    def __init__(self, scenario: dict[str, Any], *, groups: bool) -> None:
        given = scenario["input"]
        self.store = LeakyTreeStore(given["num_blocks"], given["block_size"])
        self.store.reclaims = []
        self.groups = groups
        prompts = Prompts()
        self.requests = {row["id"]: prompts.of(*row["prompt"]) for row in given["requests"]}
        self.arrivals = sorted((row["arrive_step"], row["id"]) for row in given["requests"])
        self.held: dict[int, int] = {}
        self.outputs: dict[int, int] = {}
        """Of running requests in list order."""

    def fits(self, blocks: int) -> bool:
        while blocks > self.store.free_blocks:
            if not self.store.reclaim():
                return False
        return True

    def reclaims(self) -> list[list[int] | None]:
        done, self.store.reclaims = self.store.reclaims, []
        assert done is not None
        return done

    def admit(self, id: int) -> dict[str, Any] | None:
        """As the recording tells it; None: it is lost."""
        request = self.requests[id]
        hit = self.store.match(request)
        self.store.attach(request, hit)
        new = blocks_of(request.prompt_tokens) - hit.blocks
        if not self.fits(new):
            self.store.release(request, hit.blocks, 0, returns=False)
            return None
        self.store.grow(request, new, 0)
        self.held[id] = hit.blocks + new
        assert hit.free_blocks == 0
        return {
            "id": id,
            "matched_tokens": hit.tokens,
            "matched_offset": self.store.offset_tokens,
            "blocks": self.store.table(request),
        }

    def prefill(self, row: dict[str, Any]) -> None:
        request = self.requests[row["id"]]
        self.check_tables([row])
        assert row["offset"] == self.store.offset_tokens
        self.store.computed(request, row["end"])
        if row["last"]:
            self.outputs[row["id"]] = 1

    def decode(self) -> list[int]:
        """A block each where one is needed; those that get none fail, and are returned."""
        failed = []
        for id, outputs in self.outputs.items():
            new = blocks_of(self.requests[id].prompt_tokens + outputs) - self.held[id]
            if not self.fits(new):
                failed.append(id)
                continue
            self.held[id] += new
            if self.groups:
                self.store.take(new)
            else:
                self.store.grow(self.requests[id], new, 0)
        for id in failed:
            self.leave(id)
        return failed

    def leave(self, id: int) -> None:
        self.store.release(self.requests[id], self.held.pop(id), 0, returns=False)
        del self.outputs[id]

    def check_tables(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            table = self.store.table(self.requests[row["id"]])
            assert self.held[row["id"]] == len(row["blocks"])
            assert self.groups or table == row["blocks"]

    def same_reclaims(self, recorded: list[list[int] | None]) -> None:
        done = self.reclaims()
        if not self.groups:
            assert done == recorded
        assert [blocks and len(blocks) for blocks in done] == [blocks and len(blocks) for blocks in recorded]

    def admissions(self, step: dict[str, Any]) -> None:
        for row in step["admitted"]:
            _, id = self.arrivals.pop(0)
            admitted = self.admit(id)
            assert admitted is not None
            if self.groups:
                row = {**row, "blocks": admitted["blocks"]}
            assert admitted == row
        if step["admit_oom"]:
            _, id = self.arrivals.pop(0)
            assert self.admit(id) is None
        self.same_reclaims(step["admit_evictions"])

    def step(self, step: dict[str, Any]) -> None:
        self.admissions(step)
        for row in step["prefill"]:
            self.prefill(row)
        assert len(self.decode()) == step["decode_oom"]
        self.same_reclaims(step["decode_evictions"])
        assert list(self.outputs) == [row["id"] for row in step["decode"]]
        self.check_tables(step["decode"])
        for id in self.outputs:
            self.outputs[id] += 1
        for id in step["finished"]:
            self.leave(id)
        assert self.store.free_blocks == step["after"]["free"]
        assert self.store.total_blocks - self.store.free_blocks == step["after"]["used"]
        self.store.check_invariants(sum(self.held.values()))


@pytest.mark.parametrize("groups", [False, True], ids=["one by one", "as a group"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_recordings(name: str, groups: bool):
    """Matches, block tables, evicted leaves and free blocks of every recorded step; the numbers themselves agree.

    With decodes as a group, numbers are others, and everything that can be counted is the same.
    """
    replay = Replay(SCENARIOS[name], groups=groups)
    for step in SCENARIOS[name]["output"]["steps"]:
        replay.step(step)
    allocated = SCENARIOS[name]["output"]["metrics"]["kv_cache"]["allocated_blocks"]
    assert replay.store.total_blocks - replay.store.free_blocks == allocated
    if not replay.held:
        assert replay.store.retained_blocks == allocated
