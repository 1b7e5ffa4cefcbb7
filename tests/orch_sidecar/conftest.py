"""An environment without settings, and a server that publishes a pool."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from orch_sidecar.config.settings import SidecarSettings
from tests.orch_sidecar.published import Tier


@pytest.fixture
def no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting from outside reaches a test."""
    for name in (*SidecarSettings.model_fields, "config"):
        monkeypatch.delenv(f"ORCH_{name.upper()}", raising=False)


@pytest.fixture
async def tier() -> AsyncIterator[Tier]:
    """It publishes the pool `cloud`."""
    made = Tier("cloud")
    server = await made.start()
    yield made
    made.publisher.streams.close()
    made.listener.close()
    await server.shutdown(1.0)
