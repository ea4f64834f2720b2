"""Memory that jitters (capacity_events): what a pool loses first, who pays, and what happens when it comes back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sim import ScenarioError, make_scenario, replay
from sim.core.engine import EngineCore
from sim.core.lifecycle import State
from sim.core.plan import BatchPlan
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE, Reference, engine_config
from sim.kv.content import Content
from sim.results.columns import STATES
from sim.results.run import RunResult

MS = 1_000_000


def engine(**flags: Any) -> EngineCore:
    """Ten blocks of 4 tokens."""
    return EngineCore(Reference(**{"block_size": 4, "num_blocks": 10, **flags}).spec(UNKNOWN_HARDWARE))


def submit(core: EngineCore, name: str, prompt: int, outputs: int, ids: tuple[int, ...] = ()) -> Request:
    content = Content(ids, shared_blocks=len(ids), owner=0)
    request = Request(name, prompt_tokens=prompt, max_tokens=outputs, content=content)
    core.submit(request, stop_after=outputs)
    return request


def run_one(core: EngineCore) -> BatchPlan:
    plan = core.plan_step()
    assert plan is not None
    core.cut(plan, 1)
    core.commit_step(plan, 1)
    core.check_invariants()
    return plan


def pool(core: EngineCore) -> tuple[int, int]:
    """(usable, free)."""
    return core.store.total_blocks, core.store.free_blocks


@pytest.mark.parametrize(("blocks", "evicted"), [(6, 0), (5, 1), (2, 4)])
@pytest.mark.parametrize("kind", ["hash-chain", "radix-tree"])
def test_cached_contents_go_before_anybody_has_to(kind: str, blocks: int, evicted: int) -> None:
    """`a` left four cached blocks, `b` holds two, four are blank: these go first, then the cached, and nobody's."""
    core = engine(prefix_cache=True, prefix_cache_kind=kind)
    submit(core, "a", 16, 1, ids=(1, 2, 3, 4))
    run_one(core)
    submit(core, "b", 7, 30)
    run_one(core)
    assert (pool(core), core.store.cached_blocks) == ((10, 8), 4)
    core.resize(blocks)
    assert pool(core) == (10, 8)  # from the next step on
    assert run_one(core).preempted == []
    assert pool(core) == (blocks, blocks - 2)
    # A tree evicts whole leaves.
    assert core.store.evicted_blocks == (evicted if kind == "hash-chain" else 4 * (evicted > 0))


def test_then_victims_of_the_preemption_policy_who_come_back_with_the_blocks() -> None:
    """Two requests hold two blocks each: with three usable ones the newest gives way; with ten he is back."""
    core = engine()
    a, b = submit(core, "a", 7, 30), submit(core, "b", 7, 30)
    run_one(core)
    core.resize(3)
    plan = run_one(core)
    assert (plan.preempted, plan.decode_requests) == ([b], 1)
    assert pool(core) == (3, 1)
    assert run_one(core).deferred is not None
    core.resize(10)
    assert [item.request for item in run_one(core).items] == [b]
    assert list(core.running) == [a, b]
    assert pool(core)[0] == 10


def test_everybody_may_have_to_go() -> None:
    """A pool of nothing: both are victims, in a step without work; all is computed again later."""
    core = engine()
    submit(core, "a", 7, 3)
    submit(core, "b", 7, 3)
    run_one(core)
    core.resize(0)
    plan = run_one(core)
    assert ([request.id for request in plan.preempted], plan.decode_requests) == (["b", "a"], 0)
    assert core.plan_step() is None
    core.resize(10)
    assert [item.tokens for item in run_one(core).items] == [8, 8]


def test_where_nobody_gives_way_the_pool_follows_as_blocks_come_free() -> None:
    """Both hold two blocks and need no more: six of ten blocks go at once, the seventh when `b` is over."""
    core = engine(admission="conservative")
    submit(core, "a", 6, 3)
    submit(core, "b", 6, 2)
    run_one(core)
    core.resize(3)
    assert run_one(core).preempted == []
    assert pool(core) == (4, 2)  # `b` has ended in this step
    run_one(core)
    assert pool(core) == (3, 3)  # and now `a`


def test_failing_is_the_policy_of_some() -> None:
    """mini-runtime preempts nobody: the newest fails. Its leaves go first, though evicting used ones frees nothing."""
    config = engine_config("mini-runtime", {"block_size": 4, "num_blocks": 10})
    core = EngineCore(config.spec(UNKNOWN_HARDWARE))
    a, b = submit(core, "a", 7, 30), submit(core, "b", 7, 30)
    run_one(core)
    core.resize(3)
    run_one(core)
    assert (a.state, b.state) == (State.RUNNING, State.FAILED)
    assert core.store.evicted_blocks == 4
    assert pool(core) == (3, 1)


def test_who_fits_the_whole_pool_is_not_turned_away_while_it_is_small() -> None:
    """He waits; who does not fit it at its best is rejected as ever."""
    core = engine()
    core.resize(2)
    assert submit(core, "fits", 40, 1).state is State.QUEUED
    assert submit(core, "never", 41, 1).state is State.REJECTED
    assert core.plan_step() is None
    core.resize(10)
    run_one(core)
    assert core.idle


# -- on the clock: steps of 10 ms


def run(events: Any, requests: list[dict[str, Any]], *, max_stretch: int = 1 << 60, **flags: Any) -> RunResult:
    description = {
        "workload": {"kind": "inline", "requests": requests},
        "engine": {"preset": "reference", "block_size": 4, "num_blocks": 10, **flags},
        "cost": {"kind": "linear", "a_s": 0.01, "b_s_per_token": 0.0},
        "capacity_events": events,
    }
    return replay(make_scenario(description), max_stretch=max_stretch)


def request(prompt: int, outputs: int, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "output_tokens": outputs, "max_tokens": outputs, **more}


@pytest.mark.parametrize("max_stretch", [1, 1 << 60])
def test_an_event_takes_effect_at_the_end_of_the_step_in_progress(max_stretch: int) -> None:
    """At 35 ms the pool grows from four blocks to eight: who waits for three is let in at 40 ms."""
    result = run([(0.035, 8)], [request(8, 8), request(12, 1, arrival_s=0.001)], max_stretch=max_stretch, num_blocks=4)
    assert list(result.requests.admitted_ns) == [0, 40 * MS]
    assert list(result.requests.preemptions) == [0, 0]
    assert result.engines[0].total_blocks == 8


@pytest.mark.parametrize("max_stretch", [1, 1 << 60])
def test_whoever_cannot_go_on_waits_for_memory_to_come_back(max_stretch: int) -> None:
    """Two blocks hold 8 tokens: five come out by 50 ms. At 1 s the blocks are back, the other five take 50 ms."""
    events = [{"at_s": 0.025, "blocks": 2}, {"at_s": 1.0, "blocks": 10}]
    result = run(events, [request(4, 10)], max_stretch=max_stretch, admission="conservative")
    assert result.outcome.stalled is None
    assert result.requests.end_ns[0] == 1050 * MS
    assert result.logs[0].steps.ends_ns[4] == 50 * MS
    assert result.logs[0].steps.ends_ns[5] == 1010 * MS


def test_memory_that_does_not_come_back_is_said() -> None:
    result = run([(0.025, 2)], [request(4, 10)], admission="conservative")
    assert result.outcome.stalled is not None
    assert "0 of 2 blocks are free" in result.outcome.stalled


def test_the_time_of_a_request_that_loses_its_blocks_twice() -> None:
    """Nothing is usable from the end of its third and of its sixth step on; at 100 and 200 ms it starts over."""
    events = [(0.025, 0), (0.1, 10), (0.125, 0), (0.2, 10)]
    result = run(events, [request(4, 8)])
    assert result.requests.preemptions[0] == 2
    assert result.requests.lost_tokens[0] == 6 + 9
    assert STATES[result.requests.state[0]] is State.FINISHED
    assert result.requests.end_ns[0] == 220 * MS
    assert result.requests.requeue_ns[0] == (70 + 70) * MS


# -- how it is said

BASE = {"workload": {"kind": "inline", "requests": [request(4, 4)]}}


def test_pairs_are_as_good_as_tables() -> None:
    pairs = make_scenario({**BASE, "capacity_events": [[1, 5], [2.5, 0]]})
    tables = make_scenario({**BASE, "capacity_events": [{"at_s": 1, "blocks": 5}, {"at_s": 2.5, "blocks": 0}]})
    assert pairs == tables == make_scenario(pairs.model_dump(mode="json"))


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([[1, 5], [1, 6]], "at_s must increase, got 1.0 after 1.0"),
        ([[2, 5], [1, 6]], "at_s must increase, got 1.0 after 2.0"),
        ([[1, -1]], "blocks must be >= 0, got -1"),
        ([[-1, 1]], "at_s must be >= 0, got -1"),
        ([[1, 2, 3]], r"pair must be \(at_s, blocks\), got \[1, 2, 3\]"),
        ([{"at_s": 1, "block": 3}], "block"),
    ],
)
def test_nonsense_is_refused(events: Any, message: str) -> None:
    with pytest.raises(ScenarioError, match=rf"capacity_events.*{message}"):
        make_scenario({**BASE, "capacity_events": events})


def tokenwork(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from sim.commands.main import main; main()"]
    return subprocess.run([*program, "replay", *arguments], capture_output=True, text=True, check=False)


def test_on_the_command_line_as_text_or_file(tmp_path: Path) -> None:
    """Both say the same; a file that is missing or no JSON is an error of one line."""
    events = json.dumps([[0.5, 40], [1.5, 400]])
    (tmp_path / "events.json").write_text(events)
    (tmp_path / "broken.json").write_text("[[")
    common = ("chat-1k", "--limit", "50", "--num-gpu-blocks-override", "401", "--capacity-events")
    text, file = tokenwork(*common, events), tokenwork(*common, str(tmp_path / "events.json"))
    assert text.returncode == 0, text.stderr
    assert text.stdout == file.stdout
    assert text.stdout != tokenwork(*common[:-1]).stdout
    for name, words in (("none.json", "none.json"), ("broken.json", "not JSON")):
        result = tokenwork(*common, str(tmp_path / name))
        assert (result.returncode, result.stdout) == (2, "")
        assert words in result.stderr
        assert result.stderr.count("\n") == 1
