"""`tokenwork textbook`: the worked examples of the budget and of KV growth, row by row, from the real engine core."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from sim.core.batch import batch
from sim.core.engine import EngineCore
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE, Textbook


def textbook() -> None:
    """Print the two worked examples: sharing a step budget, and growing into a pool that is too small."""
    print("Budget 6 token-work, 2 decoding requests, a prompt of 12, chunk cap 4, decodes first")
    print("tick  decode  prefill  prompt left")
    for tick, decode, prefill, left in budget_rows():
        print(f"{tick:>4}  {decode:>6}  {prefill:>7}  {left:>11}")
    admissions: tuple[Literal["conservative", "optimistic"], ...] = ("conservative", "optimistic")
    for admission in admissions:
        print()
        print(f"Blocks of 4, 4 of them, {admission} admission. A: prompt 6, max_new 6. B: prompt 4, max_new 4")
        print("step  request  what       used blocks")
        for step, request, what, used in kv_rows(admission):
            print(f"{step:>4}  {request:<7}  {what:<9}  {used:>11}")


def budget_rows() -> list[tuple[int, int, int, int]]:
    """(tick, decodes, prefill tokens, prompt tokens left) until the prompt is done."""
    core = EngineCore(Textbook(max_work=6, chunk_cap=4).spec(UNKNOWN_HARDWARE))
    for name in ("first", "second"):
        decoding = Request(name, prompt_tokens=4, max_tokens=100)
        core.place(decoding, computed_tokens=4, output_tokens=0, stop_after=100)
    prompt = Request("prompt", prompt_tokens=12, max_tokens=1)
    core.submit(prompt, stop_after=1)
    rows = []
    for tick in range(3):
        plan = core.plan_step()
        assert plan is not None
        rows.append((tick, plan.shape.decode_requests, plan.shape.prefill_tokens, 12 - prompt.computed_tokens))
        core.cut(plan, 1)
        core.commit_step(plan, 1)
    return rows


def kv_rows(admission: Literal["conservative", "optimistic"]) -> list[tuple[int, str, str, int]]:
    """(step, request, what, used blocks after it), up to the end; steps count from the first decode."""
    core = EngineCore(Textbook(num_blocks=4, admission=admission).spec(UNKNOWN_HARDWARE))
    for name, prompt_tokens, max_new in (("A", 6, 6), ("B", 4, 4)):
        request = Request(name, prompt_tokens=prompt_tokens, max_tokens=max_new)
        core.submit(request, stop_after=max_new)
    rows: list[tuple[int, str, str, int]] = []
    step = -1  # the step that computes the first prompts
    while not core.idle:
        rows += [(step, *row) for row in _one_step(core)]
        step += 1
    return [row for row in rows if row[0] >= 0]


def _one_step(core: EngineCore) -> Iterator[tuple[str, str, int]]:
    """Plan, run and commit one step; in list order, what happened to whom and the blocks used by then."""
    used = core.used_blocks
    held = {request: core.held_blocks(request) for request in core.running}
    plan = core.plan_step()
    assert plan is not None
    scheduled = {row.request: row for row in batch(core, plan)}
    for request in dict.fromkeys([*held, *scheduled]):
        if request in plan.preempted:
            used -= held[request]
            yield request.id, "preempted", used
        if request in scheduled:
            used += scheduled[request].new_blocks
            yield request.id, "advanced" if request in held else "admitted", used
    assert used == core.used_blocks
    core.cut(plan, 1)
    for request in core.commit_step(plan, 1):
        yield request.id, "finished", core.used_blocks
