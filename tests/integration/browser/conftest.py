"""Debian's Chromium, headless, driven by Playwright. Without it these tests are skipped."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright

Open = Callable[..., Awaitable[Page]]

CHROMIUM: Final = shutil.which("chromium")
NOT_INSTALLED: Final = (
    "no chromium on this machine: apt-get install -y --no-install-recommends chromium"
)
# --no-sandbox: it runs as root in CI, and loads only our own page.
ARGUMENTS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    # The name of an attacker's page, which resolves to the loopback (DNS rebinding).
    "--host-resolver-rules=MAP evil.example 127.0.0.1",
)


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """A browser of the test's own."""
    if CHROMIUM is None:
        pytest.skip(NOT_INSTALLED)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS])
        yield browser
        await browser.close()


@pytest.fixture
async def open_page(browser: Browser) -> AsyncIterator[Open]:
    """Opens pages; keyword arguments are those of a browser's context. At the end of the test none
    has reported an error, but for what it could not load from a sidecar that a test had stopped."""
    errors: list[str] = []

    def logged(message: ConsoleMessage) -> None:
        refused = "net::ERR_" in message.text or "Failed to load resource" in message.text
        if message.type in ("error", "warning") and not refused:
            errors.append(message.text)

    async def open_one(url: str, **context: Any) -> Page:
        made = await browser.new_context(**context)
        page = await made.new_page()
        page.on("console", logged)
        page.on("pageerror", lambda error: errors.append(str(error)))
        await page.goto(url)
        return page

    yield open_one
    assert errors == []
