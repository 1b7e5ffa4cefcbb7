"""An engine that dies: requests it has not accepted keep their places for the successor."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orch_sidecar.config.installation import build
from tests.integration.held import Held, started
from tests.integration.running import Running, eventually
from tests.integration.scripted_engine import ScriptedEngine

# A decode for one client, and one that others might share.
KINDS: list[dict[str, Any]] = [{}, {"temperature": 0}]


async def succeeded(engine: ScriptedEngine, held: Held) -> None:
    """The engine is gone, and its successor is there."""
    await engine.stop()
    held.waiting.clear()
    engine.faults.gone = False
    await engine.start()


@pytest.mark.parametrize("kind", KINDS)
async def test_request_queued_while_the_core_dies_is_served_by_the_successor(
    sidecar: Running, engine: ScriptedEngine, held: Held, kind: dict[str, Any]
) -> None:
    busy = await started(sidecar, n=4)
    await eventually(lambda: held.waiting)
    queued = [await started(sidecar, seed=seed, **kind) for seed in (1, 2)]
    await eventually(lambda: sidecar.queued == 2)
    engine.faults.gone = True
    held.release()  # its slots come free, and a queued request is sent to an engine that is going
    assert (await busy.response()).status == 200
    await eventually(lambda: len(engine.generating) > 1)
    await eventually(lambda: sidecar.queued == 2)
    await succeeded(engine, held)
    await eventually(lambda: len(held.waiting) == 2)
    held.release_all()
    for client, seed in zip(queued, (1, 2), strict=True):
        assert (await client.response()).json() == {"seed": seed}
    await sidecar.idle()


@pytest.mark.parametrize("kind", KINDS)
async def test_request_that_comes_while_the_core_dies_is_served_by_the_successor(
    sidecar: Running, engine: ScriptedEngine, held: Held, kind: dict[str, Any]
) -> None:
    engine.faults.gone = True
    client = await started(sidecar, seed=1, **kind)
    await eventually(lambda: engine.generating)
    await succeeded(engine, held)
    await eventually(lambda: held.waiting)
    held.release()
    assert (await client.response()).json() == {"seed": 1}
    await sidecar.idle()


async def test_queued_request_that_cannot_connect_waits_on(
    sidecar: Running, engine: ScriptedEngine, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the instant before the state stream tells that the engine is gone."""
    if build() == "compiled":
        pytest.skip("replaces a method of a compiled class")
    busy = await started(sidecar, n=4)
    await eventually(lambda: held.waiting)
    queued = await started(sidecar, seed=1)
    await eventually(lambda: sidecar.queued == 1)
    with monkeypatch.context() as patch:
        patch.setattr(sidecar.pool.connections, "take", lambda: None)
        patch.setattr(sidecar.pool.connections, "_port", 1)
        held.release()
        assert (await busy.response()).status == 200
        await asyncio.sleep(0.3)  # it is tried again and again
        await eventually(lambda: sidecar.queued == 1)
        assert len(engine.generating) == 1
    await eventually(lambda: held.waiting)
    held.release()
    assert (await queued.response()).json() == {"seed": 1}
    await sidecar.idle()
