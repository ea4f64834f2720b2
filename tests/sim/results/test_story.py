"""One request's story, with exact numbers; and that the sums of all stories are those of the metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim import make_scenario, read_scenario, replay
from sim.core.plan import Blocker
from sim.results.blocked import WAITED_FOR
from sim.results.events import event_table
from sim.results.measure import Measured
from sim.results.report import write_report
from sim.results.run import RunResult
from sim.results.story import Books, NoSuchRequest, Story, story

CASES = Path(__file__).parents[2] / "cases" / "scenarios"
MS = 1_000_000


def case(name: str, requests: list[dict[str, Any]] | None = None, **changes: Any) -> RunResult:
    """A worked case; `requests` come behind its own."""
    description = read_scenario(CASES / f"{name}.toml").model_dump(mode="json", exclude_unset=True)
    description["workload"]["requests"] += requests or []
    for key, value in changes.items():
        old = description.get(key)
        description[key] = {**old, **value} if isinstance(old, dict) else value
    return replay(make_scenario(description))


def told(of: Story) -> list[tuple[float, str]]:
    return [(moment.time_ns / MS, moment.text) for moment in of.moments]


def test_a4_the_recompute_preemption() -> None:
    """Step 16 takes r0 to 49 tokens, its fourth block; r1 gives way, and gets its four blocks when r0 ends."""
    of = story(case("A4"), "r1")
    assert told(of) == [
        (0, "arrived, 1 request waiting"),
        (0, "admitted, nothing of it cached"),
        (10, "first token out"),
        (150, "preempted for the next block of r0 (recompute): 48 tokens of KV lost"),
        (150, "waits: the step has preempted (2 of 6 blocks free)"),
        (160, "not let in: not enough free blocks (2 of 6 blocks free, its 49 tokens take 4)"),
        (350, "admitted again, nothing of it cached"),
        (550, "finished: length, 35 tokens out"),
    ]
    assert of.queue_ns == {}
    assert of.requeue_ns == {"blocks": 200 * MS}
    assert (of.preemptions, of.lost_tokens, of.output_tokens) == (1, 48, 35)


def test_a4_swapped() -> None:
    """Three blocks go out in step 16 and come back in step 36, each way 3 x 32,768 ns over the link."""
    swap = {"preemption": {"name": "newest", "parameters": {"mode": "swap"}}}
    of = story(case("A4", policies=swap, host_blocks=10), "r1")
    assert told(of)[3:] == [
        (150, "preempted for the next block of r0 (swap): its KV moves to the host"),
        (150, "waits on the host for blocks to come back to"),
        (350.098304, "back from the host with 3 blocks"),
        (550.196608, "finished: length, 35 tokens out"),
    ]
    assert of.requeue_ns == {"blocks": 200_098_304}
    assert (of.preemptions, of.lost_tokens) == (1, 0)


def test_a1_rejected_at_submission() -> None:
    of = story(case("A1"), "never")
    need = "needs 63 blocks for the prompt alone (66 with all its output), the pool has 49"
    assert told(of) == [(0, "arrived, 1 request waiting"), (0, f"rejected: prompt > KV ({need}), 0 tokens out")]
    assert (of.end, of.queue_ns, of.requeue_ns) == ("rejected", {}, {})


def test_timed_out_behind_a_slot() -> None:
    late = {"id": "late", "arrival_s": 0.1, "prompt_tokens": 10, "output_tokens": 5, "queue_timeout_s": 0.3}
    of = story(case("A4", [late], engine={"slots": 1}), "late")
    assert told(of) == [
        (100, "arrived, 1 request waiting"),
        (100, "waits: no sequence slot (1 of 1 taken)"),
        (400, "timed out: queue timeout, 0 tokens out"),
    ]
    assert of.queue_ns == {"slots": 300 * MS}


def test_waiting_behind_another_names_him() -> None:
    later = {"id": "later", "arrival_s": 0.2, "prompt_tokens": 10, "output_tokens": 5, "max_tokens": 5}
    of = story(case("A4", [later]), "later")
    assert told(of)[1] == (
        200,
        "waits behind r1: not enough free blocks (2 of 6 blocks free, the prompt of r1 takes 3)",
    )


@pytest.fixture(scope="module")
def crowded() -> RunResult:
    """A pool too small, so that everything happens."""
    return replay(
        make_scenario(
            {
                "workload": {"kind": "bundled"},
                "limit": 300,
                "rate_scale": 6,
                "engine": {"preset": "vllm-v1", "num_gpu_blocks_override": 600},
            }
        )
    )


def test_the_sums_of_stories_are_those_of_the_metrics(crowded: RunResult) -> None:
    measured = Measured(crowded)
    books = Books.of_run(measured)
    assert sum(crowded.requests.preemptions) > 20
    for row, request_id in list(enumerate(books.requests.index))[::7]:
        of = story(books, request_id)
        by_place = [of.queue_ns.get(blocker.value, 0) for blocker in WAITED_FOR]
        assert by_place == measured.blocked_ns[:, row].tolist()
        assert sum(of.queue_ns.values()) == measured.queue_ns[row]
        assert sum(of.requeue_ns.values()) == crowded.requests.requeue_ns[row]
        assert of.preemptions == crowded.requests.preemptions[row]
        assert of.lost_tokens == crowded.requests.lost_tokens[row]
        times = [moment.time_ns for moment in of.moments]
        assert times == sorted(times)


def test_events_are_in_order_and_evictions_add_up(crowded: RunResult) -> None:
    table = event_table(crowded)
    assert table["time_ns"].is_monotonic_increasing
    evicted = table[table["event"] == "evicted"]
    assert 0 < evicted["blocks"].sum() <= crowded.engines[0].evicted_blocks
    assert set(evicted["what"]) <= {"prompts", "decodes"}
    counts = table["event"].value_counts()
    assert counts["arrived"] == counts["ended"] == 300
    assert counts["preempted"] == sum(crowded.requests.preemptions)
    assert set(table[table["event"] == "blocked"]["what"]) <= {blocker.value for blocker in Blocker}


def test_a_folder_tells_the_same(crowded: RunResult, tmp_path: Path) -> None:
    write_report(crowded, tmp_path / "out")
    write_report(crowded, tmp_path / "again")
    most = str(np.argmax(crowded.requests.preemptions))
    assert story(tmp_path / "out", most) == story(crowded, most)
    assert (tmp_path / "out" / "events.parquet").read_bytes() == (tmp_path / "again" / "events.parquet").read_bytes()


def test_the_journal_is_small(crowded: RunResult) -> None:
    """Under 300 bytes a request beyond the columns, in a run that preempts all the time."""
    journal = crowded.logs[0].journal
    entries = (journal.readmissions(), journal.preemptions(), journal.swap_ins(), journal.heads())
    assert sum(rows.nbytes for rows in entries) / 300 < 300


def test_an_unknown_id_names_its_neighbours(crowded: RunResult) -> None:
    with pytest.raises(NoSuchRequest, match="no request has the id '29x'; there is '29'"):
        story(crowded, "29x")
