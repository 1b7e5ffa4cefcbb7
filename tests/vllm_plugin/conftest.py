"""An engine's endpoint with short intervals, and a path for a custom profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vllm_plugin.api_server import Engine
from vllm_plugin import endpoint


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Returns an application with the endpoint; its streams check often whether to end."""
    monkeypatch.setattr(endpoint, "CHECK_EVERY_S", 0.02)
    engine = Engine()
    await engine.start()
    return engine


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Returns the path of a custom profile."""
    return tmp_path / "mine.yaml"
