"""The text of many pools' metrics: complete, in order, and never long on the event loop."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from orch_sidecar.config.resolve import load_pools
from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.observability import metrics as module
from orch_sidecar.observability.exposition import OPENMETRICS
from orch_sidecar.observability.metrics import Metrics
from orch_sidecar.pools.registry import PoolRegistry
from tests.orch_sidecar.openmetrics import openmetrics

POOLS = 30


@pytest.fixture
async def registry() -> PoolRegistry:
    entries = [
        {"name": f"e-{number}", "url": f"http://127.0.0.1:{1 + number}", "profile": "cloud"}
        for number in range(POOLS)
    ]
    settings = SidecarSettings.model_validate({"pools": entries})
    async with aiohttp.ClientSession() as session:
        return PoolRegistry(load_pools(settings), settings, session)


async def test_samples_of_all_pools_stand_together_in_each_family(registry: PoolRegistry) -> None:
    pieces, _ = Metrics(registry).exposition(OPENMETRICS)
    families = openmetrics(b"".join([piece async for piece in pieces]))
    names = [family.name for family in families]
    assert len(set(names)) == len(names), "a family is one group of lines"
    names_of_pools = [pool.name for pool in registry]
    for family in families:
        of_pools = [s.labels["pool"] for s in family.samples if "pool" in s.labels]
        assert list(dict.fromkeys(of_pools)) in ([], names_of_pools)


async def test_event_loop_runs_between_the_pieces(
    registry: PoolRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pieces as short as they can be: one pool of one family."""
    monkeypatch.setattr(module, "PIECE_S", -1.0)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    pieces, _ = Metrics(registry).exposition("")
    sizes = [len(piece) async for piece in pieces]
    counting.cancel()
    assert turns >= len(sizes) - 2 > 30 * POOLS
    assert max(sizes[:-1]) < 10_000
