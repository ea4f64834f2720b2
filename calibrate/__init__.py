"""Profiles from measurements: kernels timed here, or tables that others have published."""
