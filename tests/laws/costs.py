"""What a step takes in the worlds of the laws."""

from __future__ import annotations

from costmodel.config import ProfileConfig, build_cost_model
from costmodel.model import CostModel
from sim.testing.worlds import EvenCost, UnevenCost

STEP_NS = 1000

COSTS: dict[str, CostModel] = {
    "even": EvenCost(STEP_NS),
    "uneven": UnevenCost(STEP_NS),
    "profile": build_cost_model(ProfileConfig(kind="profile", name="h100-llama-3.1-8b-bf16")),
}
