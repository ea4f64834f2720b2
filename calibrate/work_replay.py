"""The proof that calibrated budgets are worth having: a replay under a step budget with equal and calibrated weights.

Both budgets let exactly the same step through: the profile's reference batch with its chunk behind its context. The
time that this step takes is the target. Elsewhere equal weights do not see what is read: steps get longer than the
target where contexts are long, and shorter than they could be where they are short.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from costmodel.config import ProfileConfig
from costmodel.profile import Profile
from costmodel.shape import StepShape
from costmodel.token_weights import TokenWeightsModel
from costmodel.work import EQUAL_WORK, token_work
from sim.engines import engine_config
from sim.replay import replay
from sim.results.measure import Measured
from sim.results.metrics import Metrics, compute
from sim.scenario import Inline, InlineRequest, Policies, PolicyChoice, Scenario

ENGINE = "reference"
BLOCK_TOKENS = 16
REQUESTS_PER_SLOT = 6
SHORTEST_TOKENS = 16
SEED = 5
TOLERANCE_RATIO = 0.01
NS_PER_S = 1e9


def replay_text(profile_path: str, profile: Profile) -> str:
    """One line per kind of weights: P95 and worst step time against the target, and what the users get."""
    shape = target_shape(profile)
    model = TokenWeightsModel(profile.terms())
    target_s = model.seconds(shape)
    calibrated = token_work(model, profile.reference)
    lines = [
        f"a replay under a step budget that lets {shape.decode_requests} decodes at "
        f"{profile.reference.context_tokens:,} and a chunk of {shape.prefill_tokens:,} behind as much through, "
        f"a step of {target_s * 1e3:.3g} ms (the target)",
        f"{'weights':<12}  budget  steps  P50 / target  P95 / target  worst / target  > 1 % over  "
        "TTFT P95 s  E2E mean s",
    ]
    for name, work in (("equal", EQUAL_WORK), ("calibrated", calibrated)):
        budget = work.work(shape)
        measured = Measured(replay(_scenario(profile_path, profile, name, budget)))
        steps_s = np.concatenate([plans.step_ns for plans in measured.plans]) / NS_PER_S
        lines.append(_line(name, budget, compute(measured), steps_s / target_s))
    return "\n".join(lines)


def target_shape(profile: Profile) -> StepShape:
    """The reference batch and its chunk, behind as much context as a decode has."""
    at = profile.reference
    return StepShape(
        ((at.prefill_chunk_tokens, at.context_tokens),), at.decode_requests, at.decode_requests * at.context_tokens
    )


def _line(name: str, budget: float, metrics: Metrics, steps: npt.NDArray[np.float64]) -> str:
    """`steps`: their durations in targets."""
    p50, p95 = np.percentile(steps, (50, 95))
    over = float((steps > 1 + TOLERANCE_RATIO).mean())
    ttft_s, e2e_s = metrics.value("p95_ttft_s") or 0, metrics.value("mean_e2e_s") or 0
    return (
        f"{name:<12}  {budget:>6.0f}  {len(steps):>5,}  {p50:>12.2f}  {p95:>12.2f}  {steps.max():>14.2f}  "
        f"{over:>10.1%}  {ttft_s:>10.3g}  {e2e_s:>10.3g}"
    )


def _scenario(profile_path: str, profile: Profile, weights: str, budget: float) -> Scenario:
    """Everybody is there at the start; lengths evenly spread on a logarithmic scale over what was measured."""
    seen, at = profile.valid_range, profile.reference
    slots = 2 * at.decode_requests
    longest = max(4 * SHORTEST_TOKENS, seen.max_context_tokens // 2)
    drawn = np.random.default_rng(SEED).random((REQUESTS_PER_SLOT * slots, 2))
    prompts = (SHORTEST_TOKENS * (longest / SHORTEST_TOKENS) ** drawn[:, 0]).astype(int).tolist()
    outputs = (SHORTEST_TOKENS * 8 ** drawn[:, 1]).astype(int).tolist()
    requests = tuple(
        InlineRequest(prompt_tokens=prompt, output_tokens=output, max_tokens=output)
        for prompt, output in zip(prompts, outputs, strict=True)
    )
    most_blocks = slots * (longest + 8 * SHORTEST_TOKENS + BLOCK_TOKENS) // BLOCK_TOKENS + slots
    flags = {"slots": slots, "num_blocks": most_blocks, "block_size": BLOCK_TOKENS}
    choice = PolicyChoice(name="token-work", parameters={"max_work": budget, "weights": weights})
    return Scenario(
        name=f"step budget, {weights} weights",
        workload=Inline(requests=requests),
        engine=engine_config(ENGINE, flags),
        policies=Policies(budget=choice),
        cost=ProfileConfig(name=profile_path, graphs=None),
    )
