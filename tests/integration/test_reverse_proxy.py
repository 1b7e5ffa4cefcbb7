"""Streams behind nginx with its default settings, with which it buffers responses."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from orch_sidecar.api.endpoints import LIVE, STREAM
from tests.integration.answers import EVENT_STREAM
from tests.integration.client import Client, Fields
from tests.integration.running import Running
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer
from tests.patience import HANG_S

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin")
needs_nginx = pytest.mark.skipif(
    NGINX is None, reason="nginx is missing: apt-get install --no-install-recommends nginx-light"
)

CONFIGURATION = """
daemon off;
master_process off;
pid nginx.pid;
error_log stderr;
events {}
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path answers;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server {
        listen 127.0.0.1:%d;
        location / { proxy_pass http://127.0.0.1:%d; }
    }
}
"""


@asynccontextmanager
async def nginx(directory: Path, port: int) -> AsyncIterator[int]:
    """Runs one with its default settings before this port. Yields the port of nginx."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        own: int = free.getsockname()[1]
    configuration = directory / "nginx.conf"
    configuration.write_text(CONFIGURATION % (own, port), encoding="utf-8")
    assert NGINX is not None
    arguments = (NGINX, "-p", str(directory), "-c", str(configuration), "-e", "stderr")
    process = await asyncio.create_subprocess_exec(*arguments)
    try:
        async with asyncio.timeout(HANG_S):
            while True:
                assert process.returncode is None, "its error is above"
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", own)
                except OSError:
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    break
        yield own
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@needs_nginx
@pytest.mark.parametrize("headers", [(), (("X-Orch-Queue-Events", "sse"),)])
async def test_tokens_come_through_at_once(
    engine: ScriptedEngine, sidecar: Running, tmp_path: Path, headers: Fields
) -> None:
    go_on = asyncio.Event()

    async def streams(answer: Answer) -> None:
        answer.head(200, EVENT_STREAM)
        answer.event("first")
        await go_on.wait()
        answer.event("last")
        answer.end()

    engine.answer = streams
    async with nginx(tmp_path, sidecar.port) as port:
        client = await Client.connect(port)
        client.start(headers=headers)
        await client.seen(b"first")
        go_on.set()
        await client.seen(b"last")
        await client.close()


@needs_nginx
@pytest.mark.parametrize("path", [STREAM, LIVE])
async def test_state_comes_through_at_once(sidecar: Running, tmp_path: Path, path: str) -> None:
    async with nginx(tmp_path, sidecar.port) as port:
        client = await Client.connect(port)
        client.send_request("GET", path)
        await client.seen(b"data: ")
        await client.close()
