"""tokenwork's simulator: a serving engine's decisions (`sim.core`), replayed on a clock (`sim.driver`)."""
