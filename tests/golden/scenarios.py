"""Random scenarios for the differential fuzz: small, crowded, and short of all that an engine can be short of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from sim.engines import VllmV1
from sim.kv.content import PRIVATE_SPAN


@dataclass(frozen=True, slots=True)
class Job:
    """One request, with its truth."""

    id: str
    turn: int
    """It arrives just before the scheduling of this turn."""
    arrival: int
    """Tie-breaker of the priority order."""
    priority: int
    prompt: int
    max_tokens: int
    stop_after: int
    """The answer is over after so many tokens; below max_tokens nobody can know that in advance."""
    ids: tuple[int, ...]
    """Content of its first blocks; what lies behind is its own."""

    def block_ids(self, block_tokens: int, owner: int) -> list[int]:
        """An id for each of its blocks, private ones named as `sim.kv.content` names them."""
        blocks = (self.prompt + self.max_tokens) // block_tokens
        return [*self.ids, *(-1 - owner * PRIVATE_SPAN - block for block in range(len(self.ids), blocks))]


@dataclass(frozen=True, slots=True)
class Abort:
    turn: int
    id: str
    during: bool
    """Inside the step that is updated in this turn; else just before the turn's scheduling."""


@dataclass(frozen=True, slots=True)
class Scenario:
    flags: dict[str, Any]
    """Of the preset `vllm-v1`."""
    jobs: tuple[Job, ...]
    """In order of arrival."""
    aborts: tuple[Abort, ...]
    """In order of turns, before scheduling first."""

    @property
    def config(self) -> VllmV1:
        return VllmV1(**self.flags)

    @property
    def depth(self) -> int:
        return 2 if self.flags["async_scheduling"] else 1


def random_scenario(seed: int, **fixed: Any) -> Scenario:
    """The scenario of a seed; `fixed` overrides flags."""
    rng = Random(seed)
    flags = {**_random_flags(rng), **(_crush(rng) if rng.random() < 0.3 else {}), **fixed}
    jobs = _random_jobs(rng, flags)
    return Scenario(flags, jobs, _random_aborts(rng, jobs))


def _random_flags(rng: Random) -> dict[str, Any]:
    block_size = rng.choice((1, 2, 3, 4, 4, 5, 8, 16))
    longest = rng.choice((8, 16, 24, 40, 40, 64, 100))
    longest_blocks = -(-longest // block_size)
    chunked = rng.random() < 0.8
    budget = rng.choice((1, 2, 3, 5, 8, 12, 16, 24, 40, 200))
    max_num_seqs = rng.choice((1, 2, 3, 5, 8, 16, 64, 64))
    return {
        "block_size": block_size,
        "max_model_len": longest,
        # vLLM refuses to start unless one longest sequence fits the pool.
        "num_gpu_blocks_override": 1
        + longest_blocks
        + int(longest_blocks * rng.choice((0, 0, 0.1, 0.2, 0.4, 0.7, 1, 2, 8))),
        "max_num_batched_tokens": budget if chunked else max(budget, longest),
        "max_num_seqs": max_num_seqs,
        "max_num_active_seqs": rng.choice((None, None, None, max(1, max_num_seqs // 2))),
        "enable_chunked_prefill": chunked,
        "long_prefill_token_threshold": rng.choice((0, 0, 1, 1, 2, 3, 5, 8)),
        "long_prefill_token_threshold_adaptive": rng.random() < 0.5,
        "scheduler_reserve_full_isl": rng.random() < 0.6,
        "watermark": rng.choice((0.0, 0.0, 0.0, 0.05, 0.15, 0.4)),
        "scheduling_policy": rng.choice(("fcfs", "priority")),
        "enable_prefix_caching": rng.random() < 0.7,
        "async_scheduling": rng.random() < 0.5,
    }


def _crush(rng: Random) -> dict[str, Any]:
    """Everybody gets in and nobody has room: urgent requests behind others that give way in the middle of the list."""
    block_size = rng.choice((1, 2, 4))
    longest = rng.choice((16, 24, 40))
    return {
        "block_size": block_size,
        "max_model_len": longest,
        "num_gpu_blocks_override": 1 + int(longest // block_size * rng.choice((1, 1.3, 1.7))),
        "max_num_batched_tokens": rng.choice((4, 7, 12, 40, 200)),
        "enable_chunked_prefill": True,
        "max_num_seqs": 64,
        "max_num_active_seqs": None,
        "long_prefill_token_threshold": rng.choice((0, 0, 3)),
        "scheduler_reserve_full_isl": rng.random() < 0.3,
        "scheduling_policy": "priority",
        "watermark": 0.0,
    }


def _random_jobs(rng: Random, flags: dict[str, Any]) -> tuple[Job, ...]:
    longest, block_size = flags["max_model_len"], flags["block_size"]
    known = rng.choice(("prompts", "prompts", "all", "all", "some", "none"))
    stops_early = rng.random() < 0.5
    pause = rng.choice((0, 0, 1, 2, 5, 15))
    longest_output = rng.choice((3, 8, longest, longest))
    jobs: list[Job] = []
    turn = 0
    for number in range(rng.randint(2, rng.choice((6, 12, 24)))):
        turn += rng.randint(0, pause) if rng.random() < 0.7 else 0
        prompt = rng.randint(1, rng.choice((longest - 1, longest // 2, longest // 4)))
        max_tokens = rng.randint(1, longest_output)
        blocks = (prompt + max_tokens) // block_size
        shared = {
            "prompts": prompt // block_size,
            "all": blocks,
            "some": rng.randint(0, blocks),
            "none": 0,
        }[known]
        jobs.append(
            Job(
                id=f"r{number}",
                turn=turn,
                arrival=turn + (rng.randint(-2, 2) if rng.random() < 0.3 else 0),
                priority=rng.choice((0, 0, 1, 2)),
                prompt=prompt,
                max_tokens=max_tokens,
                stop_after=rng.randint(1, max_tokens) if stops_early else max_tokens,
                ids=_random_ids(rng, jobs, shared, fresh=1000 * number) if flags["enable_prefix_caching"] else (),
            )
        )
    return tuple(jobs)


def _random_ids(rng: Random, others: list[Job], blocks: int, fresh: int) -> tuple[int, ...]:
    """A chain that may branch off somebody else's."""
    shared: tuple[int, ...] = ()
    if others and rng.random() < 0.7:
        ids = rng.choice(others).ids
        shared = ids[: rng.randint(0, len(ids))] if rng.random() < 0.5 else ids
    return (*shared, *range(fresh, fresh + blocks))[:blocks]


def _random_aborts(rng: Random, jobs: tuple[Job, ...]) -> tuple[Abort, ...]:
    if rng.random() < 0.5:
        return ()
    aborts = [
        Abort(job.turn + rng.randint(0, 40), job.id, during=rng.random() < 0.6) for job in jobs if rng.random() < 0.4
    ]
    return tuple(sorted(aborts, key=lambda abort: (abort.turn, abort.during)))


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool], *, tries: int = 2000) -> Scenario:
    """A small scenario found from here that still fails."""
    shrunk = True
    while shrunk:
        shrunk = False
        for smaller in _smaller(scenario):
            tries -= 1
            if tries < 0:
                return scenario
            if fails(smaller):
                scenario, shrunk = smaller, True
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    plain = {
        "max_num_active_seqs": None,
        "long_prefill_token_threshold": 0,
        "long_prefill_token_threshold_adaptive": False,
        "scheduler_reserve_full_isl": True,
        "watermark": 0.0,
        "scheduling_policy": "fcfs",
        "enable_prefix_caching": False,
        "async_scheduling": False,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 200,
    }
    for job in scenario.jobs:
        others = tuple(other for other in scenario.jobs if other is not job)
        aborts = tuple(abort for abort in scenario.aborts if abort.id != job.id)
        yield replace(scenario, jobs=others, aborts=aborts)
    for abort in scenario.aborts:
        yield replace(scenario, aborts=tuple(other for other in scenario.aborts if other is not abort))
    for name, value in plain.items():
        if scenario.flags[name] != value:
            yield replace(scenario, flags={**scenario.flags, name: value})
    for at, job in enumerate(scenario.jobs):
        for change in (
            {"turn": job.turn - 1 if at == 0 or job.turn > scenario.jobs[at - 1].turn else job.turn},
            {"priority": 0},
            {"arrival": job.turn},
            {"ids": job.ids[:-1]},
            {"stop_after": job.max_tokens},
            {"max_tokens": max(1, job.max_tokens - 1), "stop_after": min(job.stop_after, max(1, job.max_tokens - 1))},
            {"prompt": max(1, job.prompt - 1)},
        ):
            other = replace(job, **change)
            blocks = (other.prompt + other.max_tokens) // scenario.flags["block_size"]
            other = replace(other, ids=other.ids[:blocks])
            if other != job and other.turn >= 0:
                yield replace(scenario, jobs=(*scenario.jobs[:at], other, *scenario.jobs[at + 1 :]))
