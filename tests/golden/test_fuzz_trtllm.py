"""TensorRT-LLM on random scenarios beside a plain re-statement of its two schedulers, request by request."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from sim.conformance import compare
from sim.conformance.trtllm import TrtLlmRecorder


@dataclass(eq=False)
class Job:
    id: int
    prompt: int
    asked: int
    outputs_left: int
    pos: int = 0
    outputs: int = 0
    held: int = 0

    @property
    def generates(self) -> bool:
        return self.outputs > 0 and self.pos >= self.prompt

    @property
    def started(self) -> bool:
        return self.held > 0


class Plain:
    """One engine; prompts grow by their outputs when they are paused, as in the real one."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.size: int = config["tokens_per_block"]
        self.free: int = config["num_blocks"]
        self.active: list[Job] = []

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def turns(self) -> list[dict[str, Any]]:
        coming, turns = list(self.config["requests"]), []
        for step in range(self.config["steps"]):
            while coming and coming[0]["arrive_step"] <= step:
                row = coming.pop(0)
                self.active.append(Job(row["id"], row["prompt_len"], row["max_new_tokens"], row["true_output_len"]))
            if self.active:
                turns.append(self.turn(step))
            elif not coming:
                break
        return turns

    def turn(self, step: int) -> dict[str, Any]:
        paused: list[Job] = []
        active, free = list(self.active), self.free
        if self.config["policy"] == "MAX_UTILIZATION":
            fitting = self.utilize(active, paused)
        else:
            fitting = self.reserve(active)
        for job in paused:
            self.pause(job)
        contexts, generation = self.pack(fitting)
        for job, _ in contexts:
            if not job.started:
                self.take(job, self.blocks(job.prompt))
        for job in generation:
            self.take(job, self.blocks(job.pos + 1) - job.held)
        return {
            "step": step,
            "active": [job.id for job in active][: self.config["max_num_active"]],
            "free": free,
            "fitting": [job.id for job in fitting],
            "paused": [job.id for job in paused],
            "context": [{"id": job.id, "chunk": chunk, "pos": job.pos} for job, chunk in contexts],
            "generation": [job.id for job in generation],
            "batch_tokens": sum(chunk for _, chunk in contexts) + len(generation),
            "finished": self.run(contexts, generation),
        }

    def reserve(self, active: list[Job]) -> list[Job]:
        fitting = [job for job in active if job.generates]
        left = self.free - sum(self.to_completion(job) for job in fitting)
        if self.config["policy"] == "STATIC_BATCH" and fitting:
            return fitting
        for job in (job for job in active if not job.generates):
            need = self.to_completion(job)
            if need > left or len(fitting) >= self.config["max_num_requests"]:
                break
            left -= need
            fitting.append(job)
        return fitting

    def to_completion(self, job: Job) -> int:
        return self.blocks(job.prompt + job.asked) - job.held

    def utilize(self, active: list[Job], paused: list[Job]) -> list[Job]:
        fitting: list[Job] = []
        free, used, at, end = self.free, 0, 0, len(active)
        while at < end:
            job = active[at]
            need = self.next_step(job)
            if used + need <= free and len(fitting) < self.config["max_num_requests"]:
                used += need
                fitting.append(job)
                at += 1
                continue
            last = next((place for place in range(end - 1, at - 1, -1) if active[place].started), None)
            if last is None:
                break
            paused.append(active[last])
            free += active[last].held
            end = last
        return fitting

    def next_step(self, job: Job) -> int:
        if job.generates:
            return self.blocks(job.pos + 1) - job.held
        return 0 if job.started else self.blocks(job.prompt)

    def pack(self, fitting: list[Job]) -> tuple[list[tuple[Job, int]], list[Job]]:
        contexts: list[tuple[Job, int]] = []
        tentative: list[Job] = []
        generation: list[Job] = []
        tokens, most = 0, self.config["max_num_tokens"]
        for job in fitting:
            if self.config["chunking"] is not None and not job.generates:
                tentative.append(job)
            else:
                cost = 1 if job.generates else job.prompt
                if tokens + cost > most:
                    break
                tokens += cost
                if job.generates:
                    generation.append(job)
                else:
                    contexts.append((job, cost))
            if len(tentative) + len(contexts) + len(generation) >= self.config["max_batch_size"]:
                break
        if tentative:
            contexts = [(job, chunk) for job, chunk in self.sizes(tentative, most - tokens) if chunk]
            unfinished = [(job, chunk) for job, chunk in contexts if job.pos + chunk < job.prompt]
            contexts = unfinished + [share for share in contexts if share not in unfinished]
        return contexts, generation

    def sizes(self, jobs: list[Job], capacity: int) -> list[tuple[Job, int]]:
        policy, unit = self.config["chunking"]
        lefts = [job.prompt - job.pos for job in jobs]
        if sum(lefts) <= capacity:
            return list(zip(jobs, lefts, strict=True))
        chunks = [0] * len(jobs)
        if policy == "FIRST_COME_FIRST_SERVED":
            for at, left in enumerate(lefts):
                chunks[at] = left if left <= capacity else capacity // unit * unit
                capacity -= chunks[at]
            return list(zip(jobs, chunks, strict=True))
        before = -1
        while sum(chunks) != before:
            before = sum(chunks)
            for at, left in enumerate(lefts):
                more = min(unit, left - chunks[at])
                if sum(chunks) + more <= capacity:
                    chunks[at] += more
        return list(zip(jobs, chunks, strict=True))

    def take(self, job: Job, blocks: int) -> None:
        assert 0 <= blocks <= self.free
        job.held += blocks
        self.free -= blocks

    def pause(self, job: Job) -> None:
        self.free += job.held
        job.prompt, job.asked = job.prompt + job.outputs, job.asked - job.outputs
        job.pos = job.held = job.outputs = 0

    def run(self, contexts: list[tuple[Job, int]], generation: list[Job]) -> list[int]:
        for job, chunk in contexts:
            job.pos += chunk
        for job in generation:
            job.pos += 1
        for job in [*generation, *(job for job, _ in contexts if job.pos == job.prompt)]:
            job.outputs += 1
            job.outputs_left -= 1
        finished = [job for job in self.active if job.outputs_left == 0]
        for job in finished:
            self.free += job.held
            self.active.remove(job)
        return [job.id for job in finished]


def scenario(seed: int) -> dict[str, Any]:
    """Every request fits the pool alone, and its prompt and answer one step if prompts are not cut."""
    rng = Random(seed)
    size, blocks = rng.choice((1, 2, 4)), rng.randint(4, 30)
    chunked, batch = rng.random() < 0.6, rng.choice((1, 2, 3, 8))
    unit = rng.choice((1, 2, 4))
    longest = min(size * blocks, 60)
    requests, step = [], 0
    for id in range(rng.randint(4, 20)):
        step += rng.choice((0, 0, 1, 5))
        prompt = rng.randint(1, max(1, longest // 3))
        asked = rng.randint(1, longest - prompt) if prompt < longest else 1
        row = {"id": id, "arrive_step": step, "prompt_len": prompt, "max_new_tokens": asked}
        requests.append({**row, "true_output_len": rng.randint((asked + 1) // 2, asked)})
    return {
        "policy": rng.choice(("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "MAX_UTILIZATION", "STATIC_BATCH")),
        "max_num_requests": rng.choice((batch, 2 * batch)),
        "max_batch_size": batch,
        "max_num_active": rng.choice((2 * batch, 10_000)),
        "max_num_tokens": rng.choice((4, 9, 17, 40)) if chunked else rng.choice((64, 90)),
        "chunking": [rng.choice(("FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS")), unit] if chunked else None,
        "tokens_per_block": size,
        "num_blocks": blocks,
        "steps": 2000,
        "requests": requests,
    }


@pytest.mark.parametrize("start", range(0, 600, 100))
def test_random_scenarios_agree(start: int) -> None:
    """Step for step, planned freely."""
    recorder = TrtLlmRecorder()
    for seed in range(start, start + 100):
        given = scenario(seed)
        expected = {"steps": Plain(given).turns()}
        assert compare(recorder, expected, recorder.emit(given)).difference is None, seed


def test_they_pause_cut_and_fill() -> None:
    """The scenarios are about something."""
    turns = [turn for seed in range(300) for turn in Plain(scenario(seed)).turns()]
    assert sum(bool(turn["paused"]) for turn in turns) > 100
    assert sum(len(turn["paused"]) > 1 for turn in turns) > 5
    assert sum(len(turn["fitting"]) > len(turn["context"]) + len(turn["generation"]) for turn in turns) > 100
