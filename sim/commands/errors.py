"""What a command raises to end with one line and an exit status."""

from __future__ import annotations


class Failure(Exception):
    """What a command could not do, in one line, with its exit status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


def wrong_use(text: str) -> Failure:
    return Failure(text, 2)
