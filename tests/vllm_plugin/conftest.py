"""An engine's endpoint with short intervals."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.vllm_plugin.application import Engine
from vllm_plugin import endpoint


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    """An application with the endpoint; its streams check often whether to end."""
    monkeypatch.setattr(endpoint, "CHECK_EVERY_S", 0.02)
    monkeypatch.setattr(endpoint, "_FLUSH_S", 0.02)
    engine = Engine()
    await engine.start()
    yield engine
    await engine.stop()
