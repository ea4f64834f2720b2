"""Figures of a run as small SVG files: one module per question that they answer. Loads matplotlib; import it late."""
