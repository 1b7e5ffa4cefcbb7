"""Sidecars in front of engines and sidecars of other releases, as their clients see them."""

from __future__ import annotations

import pytest

from tests.integration.readiness import assert_unavailable, state_is
from tests.integration.running import Running, Start
from tests.integration.scripted_engine import ScriptedEngine
from vllm_plugin.contracts.lease_protocol import API_VERSION


async def assert_refused(running: Running) -> None:
    """Clients learn which versions do not fit, and so does the operator."""
    await state_is(running, "unusable")
    client = await running.client()
    response = await client.post()
    assert_unavailable(response, "api_version_mismatch")
    for version in ("2.0.0", API_VERSION):
        assert repr(version) in response.error["message"]
    assert "2.0.0" in (await client.get("/readyz")).body.decode()


async def test_engine_of_another_major_version_gets_no_requests(
    engine: ScriptedEngine, start: Start
) -> None:
    engine.state_fields["api_version"] = "2.0.0"
    await assert_refused(await start(wait=False))
    assert engine.generating == []


@pytest.mark.parametrize("version", ["1.0.0", "1.999.0"])
async def test_engine_of_another_minor_version_serves(
    engine: ScriptedEngine, start: Start, version: str
) -> None:
    engine.state_fields["api_version"] = version
    running = await start()
    assert (await (await running.client()).post()).status == 200
    await running.idle()
