"""`/v1/capabilities` of many pools: complete, in order, and never long on the event loop."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast
from unittest.mock import create_autospec

import aiohttp
import pytest
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

from orch_sidecar.auth.authorizer import Authorizer
from orch_sidecar.auth.keys import ApiKey, Keys
from orch_sidecar.config.changes import Configuration, ReloadState
from orch_sidecar.config.resolve import load_pools
from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.control import pages as module
from orch_sidecar.control.pages import Pages
from orch_sidecar.observability.metrics import Metrics
from orch_sidecar.pools.registry import PoolRegistry

POOLS = 30


async def pages_of(keys: Keys | None, *, pools: int) -> tuple[Pages, PoolRegistry]:
    """The pages of pools whose engines have never reported, the last of them a headless one."""
    entries: list[dict[str, Any]] = [
        {"name": f"e-{number}", "url": f"http://127.0.0.1:{1 + number}", "profile": "cloud"}
        for number in range(pools)
    ]
    entries.append({"name": "late", "url": "http://late:80", "profile": "home", "headless": True})
    settings = SidecarSettings.model_validate({"pools": entries})
    configured = load_pools(settings)
    registry = PoolRegistry(configured, settings, cast(aiohttp.ClientSession, None))
    reloads = ReloadState(Configuration(settings, {}, {}))
    return Pages(registry, Metrics(registry), reloads, Authorizer(keys)), registry


async def pieces_of(pages: Pages, key: ApiKey | None = None) -> list[bytes]:
    """What a client is sent."""
    body, writer = pages.capabilities(key).body, create_autospec(AbstractStreamWriter)
    assert isinstance(body, Payload)
    await body.write(writer)
    return [call.args[0] for call in writer.write.await_args_list]


async def test_every_pool_has_its_entry_in_the_order_of_the_settings() -> None:
    alice = ApiKey("alice", b"a", concurrency=3)
    for pools in (0, 1, POOLS):
        pages, registry = await pages_of(Keys([alice]), pools=pools)
        document = json.loads(b"".join(await pieces_of(pages, alice)))
        assert document["pools"] == registry.states()
        entries = document["engines"]
        assert [each["pool"] for each in entries] == [*(pool.name for pool in registry), "late"]
        assert entries[-1]["state"] == "absent"
        assert [each["state"] for each in entries] == list(document["pools"].values())
        for each in entries:
            assert "key_requests_per_minute" in each["rate_limits"]
        assert all("shares" in each for each in entries[:-1])


async def test_event_loop_runs_between_the_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """With pieces as short as they can be: one entry."""
    pages, _ = await pages_of(None, pools=POOLS)
    monkeypatch.setattr(module, "PIECE_S", -1.0)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    pieces = await pieces_of(pages)
    counting.cancel()
    assert len(pieces) == POOLS + 2, "an entry each, and the end"
    assert turns >= POOLS
    assert len(json.loads(b"".join(pieces))["engines"]) == POOLS + 1
