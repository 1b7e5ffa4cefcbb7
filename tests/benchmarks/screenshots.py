"""Makes the pictures of the page that the READMEs show, of real engines under load.

    python -m tests.benchmarks.screenshots [--out orch_sidecar/ui/screenshots]

Needs Debian's chromium and the CPU build of vLLM; takes three minutes. In each picture is what the
page showed at that moment: a home engine with one request running and others behind it, a cloud
engine with 8 slots under the load of two API keys, and the same after its engine was ended.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import random
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp
from PIL import Image
from playwright.async_api import Browser, Page, async_playwright, expect

from orch_sidecar.tools.local.stack import Plan, Stack
from orch_sidecar.tools.local.up import tiny_model
from tests.integration.browser.conftest import ARGUMENTS, CHROMIUM, NOT_INSTALLED
from tests.integration.keyed import KeyRing

OUT: Final = Path(__file__).parents[2] / "orch_sidecar" / "ui" / "screenshots"
READY_WITHIN_S: Final = 240.0
MOST_BYTES: Final = 150_000
SLOTS: Final = 8
# Name of the key, class, clients that ask one request after the other.
CLOUD_LOAD: Final = (("chat", "interactive", 7), ("reports", "bulk", 5))
SOON_MS: Final = 60_000


@asynccontextmanager
async def running(folder: Path, **plan: Any) -> AsyncIterator[Stack]:
    """An engine with the tiny model and its sidecar, ready."""
    stack = Stack(
        Plan(model=str(tiny_model()), served_name="tiny", log_directory=folder / "logs",
             environ={"HF_HUB_OFFLINE": "1"}, **plan)
    )  # fmt: skip
    try:
        await asyncio.to_thread(stack.__enter__)
        await asyncio.to_thread(stack.wait_ready, READY_WITHIN_S, lambda *_: None)
        yield stack
    finally:
        await asyncio.to_thread(stack.stop)


async def ask(url: str, after_s: float, headers: dict[str, str], tokens: tuple[int, int]) -> None:
    """Streams one answer after the other, from then on until cancelled."""
    await asyncio.sleep(after_s)
    async with aiohttp.ClientSession(headers=headers) as session:
        while True:
            body = {
                "model": "tiny",
                "prompt": " ".join(str(random.random()) for _ in range(random.randint(2, 12))),
                "max_tokens": random.randint(*tokens),
                "min_tokens": tokens[0],
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            with suppress(aiohttp.ClientError):
                async with session.post(f"{url}/v1/completions", json=body) as response:
                    await response.read()
            await asyncio.sleep(random.random() / 4)


@asynccontextmanager
async def asking(url: str, *clients: tuple[dict[str, str], tuple[int, int]]) -> AsyncIterator[None]:
    """Clients, each with its headers and the range of its answers' lengths. They come one by one,
    so that the engine is seen with every batch."""
    tasks = [
        asyncio.create_task(ask(url, 1.5 * number, *each)) for number, each in enumerate(clients)
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def open_page(browser: Browser, stack: Stack, width: int, height: int, scheme: Any) -> Page:
    context = await browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme
    )
    page = await context.new_page()
    await page.goto(f"{stack.admin_url}/ui")
    await expect(page.locator(".badge")).to_have_text("ready", timeout=SOON_MS)
    return page


async def save(page: Page, path: Path) -> None:
    """Saves what the window shows, with 256 colours."""
    picture = Image.open(io.BytesIO(await page.screenshot()))
    encoded = io.BytesIO()
    picture.convert("RGB").quantize(256).save(encoded, "PNG", optimize=True)
    size = encoded.tell()
    print(f"{path}: {size} bytes")
    assert size < MOST_BYTES
    await asyncio.to_thread(path.write_bytes, encoded.getvalue())


async def home(browser: Browser, out: Path, folder: Path) -> None:
    async with running(folder / "home", profile="home") as stack:
        page = await open_page(browser, stack, 1180, 980, "light")
        async with asking(stack.url, *[({}, (60, 200))] * 3):
            await expect(page.locator("#queue-rows tr")).to_have_count(2, timeout=SOON_MS)
            await asyncio.sleep(12)
            await expect(page.locator('[data-cells] i[data-slot="interactive"]')).to_have_count(
                1, timeout=SOON_MS
            )
            await save(page, out / "home.png")


async def cloud(browser: Browser, out: Path, folder: Path) -> None:
    keys = KeyRing(folder)
    clients = [
        ({"Authorization": f"Bearer {keys.add(name)}", "X-Orch-Class": service_class}, (60, 300))
        for name, service_class, number in CLOUD_LOAD
        for _ in range(number)
    ]
    options = ("--api-keys-file", str(keys.path))
    async with running(
        folder / "cloud", profile="cloud", slots=SLOTS, sidecar_arguments=options
    ) as stack:
        page = await open_page(browser, stack, 1180, 1500, "dark")
        phone = await open_page(browser, stack, 390, 760, "light")
        async with asking(stack.url, *clients):
            cells = page.locator('[data-cells] i:not([data-slot="free"])')
            await expect(cells).to_have_count(SLOTS, timeout=SOON_MS)
            await asyncio.sleep(25)
            await expect(cells).to_have_count(SLOTS, timeout=SOON_MS)
            await save(page, out / "cloud.png")
            assert stack.engine is not None
            await asyncio.to_thread(stack.engine.stop, 30.0)
            await expect(phone.locator(".badge")).to_have_text("down", timeout=SOON_MS)
            await asyncio.sleep(3)
            await save(phone, out / "down.png")


async def run(out: Path, only: str | None = None) -> None:
    """Writes the pictures to a folder."""
    with tempfile.TemporaryDirectory() as folder:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS])
            for name, take in (("home", home), ("cloud", cloud)):
                if only in (None, name):
                    await take(browser, out, Path(folder))
            await browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--only", choices=("home", "cloud"), help="one of the engines")
    options = parser.parse_args()
    if shutil.which("chromium") is None:
        parser.error(NOT_INSTALLED)
    options.out.mkdir(parents=True, exist_ok=True)
    asyncio.run(run(options.out, options.only))


if __name__ == "__main__":
    main()
