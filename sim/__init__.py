"""tokenwork's simulator: a serving engine's decisions (`sim.core`), replayed on a clock (`sim.driver`).

from sim import make_scenario, replay
run = replay(make_scenario({"workload": {"kind": "bundled"}}))
"""

from sim.compare import compare
from sim.replay import replay
from sim.scenario import Scenario, ScenarioError, make_scenario, read_scenario

__all__ = ["Scenario", "ScenarioError", "compare", "make_scenario", "read_scenario", "replay"]
