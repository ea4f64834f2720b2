"""Runs side by side: what each was, how they differ, and how sure that is."""
