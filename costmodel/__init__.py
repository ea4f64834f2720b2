"""Seconds for a step: shapes of steps, the features they have, and the models that price them. A leaf: no torch."""
