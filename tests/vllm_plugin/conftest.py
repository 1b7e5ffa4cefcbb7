"""An engine's endpoint with quick looks, and a place for a profile of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vllm_plugin.api_server import Engine
from vllm_plugin import endpoint


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An application with the endpoint attached; its streams look often whether to end."""
    monkeypatch.setattr(endpoint, "CHECK_EVERY_S", 0.02)
    engine = Engine()
    await engine.start()
    return engine


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a test writes a profile of its own."""
    return tmp_path / "mine.yaml"
