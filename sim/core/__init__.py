"""The engine core: decides and accounts. It has no clock, does no I/O and imports no SimPy."""
