"""The page for ten minutes: it keeps up, does not grow, and outlives restarts."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest
from playwright.async_api import CDPSession, Page, expect

from tests.integration.browser.conftest import Open
from tests.integration.browser.test_page import SOON_MS, operators
from tests.integration.client import CHAT, Client
from tests.integration.running import Running, Start
from tests.integration.scripted_engine import Engine
from tests.integration.working import step, words

pytestmark = pytest.mark.long

MINUTES = 10
# What a page of that many rows has; a leak of one row per second would add some thousands.
MOST_NODES = 6_000


async def load(running: Running) -> None:
    """One client after the other; more of them than slots run at once."""
    while True:
        with suppress(OSError, Exception):
            client = await Client.connect(running.port)
            try:
                service_class = random.choice(("interactive", "bulk"))
                await client.post(CHAT, [("X-Orch-Class", service_class)], stream=True)
            finally:
                await client.close()
        await asyncio.sleep(random.random())


async def metrics(session: CDPSession) -> dict[str, float]:
    """What the page has after a collection of garbage."""
    await session.send("HeapProfiler.collectGarbage")
    found: dict[str, Any] = await session.send("Performance.getMetrics")
    return {each["name"]: each["value"] for each in found["metrics"]}


async def assert_keeps_up(page: Page, running: Running) -> None:
    """What the page shows is what the sidecar has, but for a moment."""
    for _ in range(200):
        used = running.ledger.leased
        if (await page.locator("[data-used]").inner_text()).startswith(f"{used} of"):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the page does not show how many slots are in use")


async def test_page_keeps_up_for_ten_minutes_without_growing(
    open_page: Open, start: Start, another: Engine
) -> None:
    engine = await another(slots=8)
    engine.answer = words
    options: dict[str, Any] = {"engine_url": engine.url, "port": 0}
    running = await start(**options)
    ports = {"port": running.port, "admin_port": running.sidecar.admin_port}
    page = await open_page(operators(running))
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable")
    live = page.locator("#live")
    before: dict[str, float] | None = None
    for minute in range(MINUTES):
        tasks = [asyncio.create_task(load(running)) for _ in range(12)]
        tasks.append(asyncio.create_task(step(engine)))
        for _ in range(12):
            await asyncio.sleep(5)
            await assert_keeps_up(page, running)
            await expect(live).to_have_text("Live", timeout=SOON_MS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await running.idle(30)
        found = await metrics(session)
        if minute == 1:
            before = found
        if minute % 3 == 0:
            await engine.restart()
            await expect(page.locator(".badge")).to_have_text("ready", timeout=SOON_MS)
        elif minute % 3 == 1:
            await running.stop()
            running = await start(**(options | ports))
            await expect(live).to_have_text("Live", timeout=SOON_MS)
    assert before is not None
    after = await metrics(session)
    print({name: (before[name], after[name]) for name in ("Nodes", "JSHeapUsedSize")})
    assert after["Nodes"] < MOST_NODES
    assert after["JSEventListeners"] <= before["JSEventListeners"] + 200
    assert after["JSHeapUsedSize"] < 1.5 * before["JSHeapUsedSize"] + 2e6
