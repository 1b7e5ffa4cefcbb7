"""The operators' page behind a proxy that ends TLS, in a real browser."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.integration.browser.conftest import Open
from tests.integration.browser.test_page import SOON_MS
from tests.integration.running import Running
from tests.orch_sidecar.observability.otlp.certificates import certificate

pytestmark = pytest.mark.long


@asynccontextmanager
async def ending_tls(folder: Path, target: int) -> AsyncIterator[int]:
    """A proxy that passes everything on, `Host` too. Yields its port."""
    own = certificate(folder, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.cert_file, own.key_file)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_target, to_target = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(copy(reader, to_target), copy(from_target, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_operator_drains_by_https(open_page: Open, sidecar: Running, tmp_path: Path) -> None:
    async with ending_tls(tmp_path, sidecar.sidecar.admin_port) as port:
        page = await open_page(f"https://127.0.0.1:{port}/ui", ignore_https_errors=True)
        await page.get_by_role("button", name="Drain the pool cloud").click(timeout=SOON_MS)
        await page.get_by_role("button", name="Drain", exact=True).click()
        await expect(page.locator(".badge")).to_have_text("draining", timeout=SOON_MS)
        assert sidecar.pool.admission.draining
        await page.context.close()
