"""All bodies together: one budget for what is being read, waits and is in flight.

What a request with a long body holds while it waits: its body, once, and little else.
"""

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

from tests.integration.client import CHAT, Client, Response, body_of
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine

LIMIT = 16_384
BUDGET = 4 * LIMIT


@pytest.fixture
async def small(start: Start) -> Running:
    """A sidecar with a budget of four of the largest bodies."""
    return await start(max_body_bytes=LIMIT, body_budget_bytes=BUDGET)


def of_size(size: int, **more: Any) -> bytes:
    document = json.dumps(body_of(CHAT, **more)).encode()
    return document + b" " * (size - len(document))


def reserved(running: Running) -> int:
    return running.sidecar.frontend._bodies.reserved_bytes


def refused(response: Response) -> bool:
    if response.status == 200:
        return False
    assert (response.status, response.error["code"]) == (503, "body_budget_full")
    assert response.error["retriable"] is True
    assert int(response.header("retry-after") or 0) >= 1
    assert response.header("connection") == "close"
    return True


async def filling(running: Running, **more: Any) -> list[Client]:
    """Four clients, whose bodies take all of the budget."""
    clients = [await running.client() for _ in range(4)]
    for client in clients:
        client.send_request("POST", CHAT, of_size(LIMIT, **more))
    await eventually(lambda: reserved(running) == BUDGET)
    return clients


async def test_body_beyond_the_budget_is_refused_before_it_comes(
    engine: ScriptedEngine, small: Running, held: Held
) -> None:
    first = await filling(small)
    late = await small.client()
    late.send_request("POST", CHAT, None, [("Content-Length", "10"), ("Expect", "100-continue")])
    response = await late.response()
    assert refused(response)
    assert response.informational == []
    await eventually(lambda: len(held.waiting) == 4)
    held.release_all()
    for client in first:
        assert (await client.response()).status == 200
    await eventually(lambda: reserved(small) == 0)
    assert (await (await small.client()).post("/tokenize")).status == 200


async def test_bodies_that_wait_for_a_slot_count(small: Running, held: Held) -> None:
    await filling(small, n=4)
    await eventually(lambda: small.queued == 3)
    assert refused(await (await small.client()).post("/tokenize"))
    for answered in range(4):
        await eventually(lambda: held.waiting)
        held.release()
        await eventually(lambda left=3 - answered: reserved(small) == left * LIMIT)  # type: ignore[misc]


async def test_bodies_that_are_being_read_count(small: Running) -> None:
    slow = [await small.client() for _ in range(4)]
    for client in slow:
        client.send_request("POST", CHAT, None, [("Content-Length", str(LIMIT))])
    await eventually(lambda: reserved(small) == BUDGET)
    assert refused(await (await small.client()).post())
    for client in slow:
        client.reset()
        await client.close()
    await eventually(lambda: reserved(small) == 0)


async def test_body_of_unknown_length_counts_as_it_comes(small: Running, held: Held) -> None:
    client = await small.client()
    client.send_request("POST", CHAT, None, [("Transfer-Encoding", "chunked")])
    client.send(b"400\r\n" + b" " * 1024 + b"\r\n")
    await eventually(lambda: reserved(small) == 1024)
    others = [await small.client() for _ in range(3)]
    for other in others:
        other.send_request("POST", CHAT, of_size(LIMIT))
    await eventually(lambda: reserved(small) == 3 * LIMIT + 1024)
    (await small.client()).send_request("POST", CHAT, of_size(LIMIT - 2048))
    await eventually(lambda: reserved(small) == BUDGET - 1024)
    client.send(b"800\r\n" + b" " * 2048 + b"\r\n")
    assert refused(await client.response())
    await eventually(lambda: reserved(small) == BUDGET - 2048)


@pytest.mark.parametrize("size", [50_000, 400_000])
async def test_bodies_that_are_sent_ahead_on_one_connection_are_hardly_read(
    sidecar: Running, held: Held, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else the connection serves no more of them, if one of its checks finds many unread.
    monkeypatch.setattr("orch_sidecar.wire.client_connections._FIN_HIDDEN_BYTES", 2**30)
    client = await sidecar.client()
    for _ in range(12):
        client.send_request("POST", CHAT, of_size(size))
    await eventually(lambda: held.waiting)
    [connection] = sidecar.connections
    await eventually(lambda: not connection.transport.is_reading())  # type: ignore[union-attr]
    ahead_bytes = sum(each.arrived_bytes for each in connection._requests.ready)
    assert ahead_bytes <= 65_536 + 262_144  # one read beyond the limit
    for _ in range(12):
        await eventually(lambda: held.waiting)
        held.release()
        assert (await client.response()).status == 200


async def test_many_uploads_at_once_stay_within_the_budget_and_leave_nothing(
    engine: ScriptedEngine, small: Running
) -> None:
    most = 0

    async def upload(number: int) -> bool:
        nonlocal most
        client = await small.client()
        body = of_size(LIMIT)
        client.send_request("POST", CHAT, None, [("Content-Length", str(LIMIT))])
        for at in range(0, LIMIT, 4096):
            client.send(body[at : at + 4096])
            most = max(most, reserved(small))
            await asyncio.sleep(0)
        if number % 5 == 0:
            client.reset()
            await client.close()
            return False
        return not refused(await client.response())

    served = await asyncio.gather(*(upload(number) for number in range(45)))
    assert any(served)
    assert 0 < most <= BUDGET
    assert len(engine.generating) >= sum(served)
    await eventually(lambda: reserved(small) == 0)


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
