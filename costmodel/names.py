"""The second half of an error about an unknown name: what is known, and what was perhaps meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def known_names(name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"known are {', '.join(names)}{hint}"
