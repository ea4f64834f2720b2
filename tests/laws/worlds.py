"""Random worlds of the laws: every engine, pools that jitter, runs that stop; and laws that are checked on the way."""

from __future__ import annotations

from random import Random

from sim.core.admit import Admit
from sim.core.cohort import FOREVER
from sim.core.engine import EngineCore
from sim.core.pack import Pack
from sim.core.plan import BatchPlan
from sim.driver import Limits
from sim.testing import worlds
from sim.testing.worlds import Run, Traffic, World, random_rows
from tests.laws.costs import COSTS, STEP_NS
from tests.laws.engines import ENGINES
from tests.laws.work import check_work

TRAFFIC = Traffic(requests=(4, 12, 24), pause_steps=(0, 1, 4, 20), prompt_parts=(1, 4), answers=(4, 30))


def random_world(engine: str, seed: int, *, stops: bool = False) -> World:
    """The world of a seed. `stops`: the run ends at a limit, in the middle of whatever is going on."""
    rng = Random(seed)
    block = rng.choice((1, 2, 4, 8, 16))
    blocks = rng.randint(2, 40)
    spec = ENGINES[engine](rng, block, blocks)
    cost = rng.choice(("even", "even", "uneven", "uneven", "profile"))
    unit_ns = 6_000_000 if cost == "profile" else STEP_NS
    rows = random_rows(rng, block, blocks, TRAFFIC, unit_ns)
    limits = Limits()
    if stops and rng.random() < 0.5:
        limits = Limits(max_steps=rng.randint(1, 60))
    elif stops:
        limits = Limits(max_time_ns=rng.randint(1, 160) * unit_ns // 2)
    return World(spec, rows, COSTS[cost], limits, _random_capacity(Random(f"capacity {seed}"), blocks, unit_ns))


def _random_capacity(rng: Random, blocks: int, unit_ns: int) -> tuple[tuple[int, int], ...]:
    """In every third world the pool jitters; in the end it has its blocks back."""
    if rng.random() < 0.66:
        return ()
    times = sorted(rng.sample(range(1, 80), rng.randint(2, 8)))
    sizes = [rng.choice((0, rng.randint(0, blocks), rng.randint(0, blocks + blocks // 4))) for _ in times[1:]]
    return tuple((time * unit_ns // 2, size) for time, size in zip(times, [*sizes, blocks], strict=True))


class CheckedLog(worlds.CheckedLog):
    """Laws 10 and 11 are checked as well, after every plan that is made."""

    def planned(self, plan: BatchPlan, start_ns: int, core: EngineCore) -> None:
        super().planned(plan, start_ns, core)
        whole_hits = sum(not item.tokens for item in plan.items)
        for step in (0, plan.steps - 1):
            check_work(core, plan.shape.after(step), whole_hits)
        whole_prompts = takes_whole_prompts(core)
        for request in core.running:
            computed, held = request.computed_tokens, core.held_blocks(request)
            most = max(computed, request.known_tokens) if whole_prompts else computed
            assert core.blocks(computed) <= held <= core.blocks(most), f"law 11: {request} holds {held}"


def takes_whole_prompts(core: EngineCore) -> bool:
    """Whether a prompt has all its blocks from the start, however it is cut."""
    return any(isinstance(each, Pack) or (isinstance(each, Admit) and each.whole_prompt) for each in core.passes)


def run(world: World, *, max_stretch: int = FOREVER) -> Run:
    return worlds.run(world, max_stretch=max_stretch, books=CheckedLog)
