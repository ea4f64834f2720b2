"""The whole simulator beside the reference: what a turn decides comes out of the clock at the right time."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from sim.engines import UNKNOWN_HARDWARE
from sim.results.columns import NEVER
from sim.testing.worlds import Row, World
from tests.golden.fuzz import MAX_TURNS, ReferenceEngine
from tests.golden.scenarios import Scenario, random_scenario
from tests.laws.costs import COSTS, STEP_NS
from tests.laws.worlds import run


def on_the_clock(scenario: Scenario, rng: Random) -> World:
    """The scenario's world if every step takes `STEP_NS`: turn t is planned at t * STEP_NS.

    An arrival comes as its turn is planned; an abort comes inside the turn's step, or exactly at its end.
    """
    aborts = {abort.id: abort.turn for abort in reversed(scenario.aborts)}
    rows = tuple(
        Row(
            arrival_ns=job.turn * STEP_NS,
            prompt=job.prompt,
            max_tokens=job.max_tokens,
            stop_after=job.stop_after,
            priority=job.priority,
            ids=job.ids,
            cancel_after_ns=(
                (aborts[job.id] - job.turn) * STEP_NS + rng.choice((1, STEP_NS // 2, STEP_NS))
                if job.id in aborts
                else NEVER
            ),
        )
        for job in scenario.jobs
    )
    return World(scenario.config.spec(UNKNOWN_HARDWARE), rows, COSTS["even"])


def test_tokens_come_when_the_reference_says():
    """Synchronous scheduling: every token of every request, in stretches that the clock's events cut."""
    tokens = aborted = 0
    for seed in range(400):
        scenario = random_scenario(seed, async_scheduling=False)
        jobs = tuple(replace(job, arrival=job.turn) for job in scenario.jobs)
        aborts = tuple(replace(abort, during=True) for abort in scenario.aborts)
        scenario = replace(scenario, jobs=jobs, aborts=aborts)
        story = ReferenceEngine(scenario).play()
        if max(story.turns) >= MAX_TURNS:
            continue
        result = run(on_the_clock(scenario, Random(seed)))
        for row, job in enumerate(scenario.jobs):
            expected = [(turn + 1) * STEP_NS for turn in story.tokens[job.id]]
            assert result.token_times_ns(row) == expected, f"seed {seed}, {job.id}"
            tokens += len(expected)
            aborted += len(expected) < job.stop_after
    assert tokens > 10_000
    assert aborted > 50
