"""A registry that holds the fake engine too."""

from __future__ import annotations

import pytest

from tests.sim.conformance.fake import register


@pytest.fixture
def fake_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)
