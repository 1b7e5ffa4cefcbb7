"""What a request with a long body holds while it waits: its body, once, and little else."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.integration.client import CHAT, body_of
from tests.integration.held import Held, started
from tests.integration.running import Start, eventually
from tests.integration.scripted_engine import ScriptedEngine

WAITING = 8
MOST_BESIDE_THE_BODY = 16_384


def text(size: int) -> tuple[str, dict[str, Any]]:
    content = "Say something about foxes and rivers. " * (size // 38)
    return CHAT, {"messages": [{"role": "user", "content": content}]}


def numbers(size: int) -> tuple[str, dict[str, Any]]:
    """All of which is in its outline, too."""
    message = {"role": "user", "content": "Say something about them."}
    return CHAT, {"messages": [message], "numbers": [12_345] * (size // 7)}


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def allocated() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def send(port: int, request: bytes) -> socket.socket:
    """Sends a request on a connection that holds nothing of it here."""
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(request)
    return client


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("size", [220_000, 1_000_000])
@pytest.mark.parametrize("prompt", [numbers, text])
async def test_waiting_request_holds_its_body_once_and_16_kib_at_most(
    engine: ScriptedEngine, start: Start, held: Held, prompt: Any, size: int
) -> None:
    sidecar = await start()
    for _ in range(engine.slots):
        await started(sidecar)
    await eventually(lambda: len(held.waiting) == engine.slots)
    path, more = prompt(size)
    body = json.dumps(body_of(path, **more)).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nX-Orch-Class: bulk\r\n"
    head += "Content-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    with ExitStack() as clients:

        async def queued(number: int) -> None:
            client = await asyncio.to_thread(send, sidecar.port, request)
            clients.enter_context(client)
            await eventually(lambda: sidecar.queued == number)

        await queued(1)  # what the sidecar has once, whatever waits
        before = allocated()
        for number in range(WAITING):
            await queued(number + 2)
        beside = (allocated() - before) / WAITING - len(body)
    held.release_all()
    assert 0 < beside <= MOST_BESIDE_THE_BODY
