"""What is raised where something was asked for by a name that does not exist."""

from __future__ import annotations


class UnknownName(ValueError):
    """No such policy, or no such parameter; the message lists what there is."""
