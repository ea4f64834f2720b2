"""A run as a file for ui.perfetto.dev, in the published trace-event form (JSON)."""
