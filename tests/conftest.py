"""What tests of all packages share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("steady", deadline=None)  # no test may fail because a machine is busy
settings.load_profile("steady")

_SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder `../shared` beside the repository. Absent: the test is skipped, or fails where CI is set."""
    if _SHARED.is_dir():
        return _SHARED
    reason = "needs the folder ../shared beside the repository"
    if "CI" in os.environ:
        pytest.fail(reason)
    pytest.skip(reason)
