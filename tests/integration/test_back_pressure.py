"""A client that does not read delays its own answer, not the sidecar's memory, not others.

The limit of client connections, and closing abandoned ones.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from orch_sidecar.wire.client_connections import RESERVED_DESCRIPTORS, connection_limit
from tests.integration.answers import EVENT_STREAM
from tests.integration.client import CHAT, COMPLETIONS, Client, body_of
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, eventually, total
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer

MEGABYTE = 2**20
SMALL_BUFFER = 4096


class Firehose:
    """A script that streams `megabytes`, as fast as they are taken."""

    def __init__(self, megabytes: int) -> None:
        self.left = megabytes * 16
        self.progress = 0
        self.ended = False

    async def __call__(self, answer: Answer) -> None:
        event = b"data: " + b"x" * (MEGABYTE // 16 - 8) + b"\n\n"
        answer.head(200, EVENT_STREAM)
        for _ in range(self.left):
            answer.chunk(event)
            await answer.drain()
            self.progress += len(event)
        answer.end()
        self.ended = True


async def standstill(hose: Firehose) -> None:
    """Waits until the engine can write no more."""
    before = -1
    while hose.progress != before:
        before = hose.progress
        await asyncio.sleep(0.1)


def memory_mb() -> float:
    """Resident memory of this process, the sidecar's among it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / MEGABYTE


async def reader(client: Client) -> Client:
    """A client that will not be read from by itself: its stream stops at a small buffer."""
    client.start()
    await client.seen(b"data: x")
    return client


async def test_engine_is_paused_by_a_client_that_does_not_read_and_resumes_when_it_does(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    engine.scripts.append(hose := Firehose(64))
    before_mb = memory_mb()
    client = await reader(await sidecar.client(receive_buffer=SMALL_BUFFER))
    await standstill(hose)
    assert not hose.ended
    assert hose.progress < 24 * MEGABYTE  # what the kernel's buffers take, and ours
    assert memory_mb() - before_mb < 16
    other = await sidecar.client()
    assert (await other.post()).status == 200
    received = len(client.buffer)
    while received < 64 * MEGABYTE:
        received += len(await client._reader.read(MEGABYTE))
    await eventually(lambda: hose.ended)
    await sidecar.idle()


async def test_pipelined_requests_of_a_client_that_does_not_read_fill_no_memory(
    engine: ScriptedEngine, sidecar: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer fits into one read from the engine; together they do not fit anywhere."""
    # Else the connection serves no more of them, if one of its checks finds many unread.
    monkeypatch.setattr("orch_sidecar.wire.client_connections._FIN_HIDDEN_BYTES", 2**30)

    async def whole(answer: Answer) -> None:
        answer.head(200, [("content-length", "60000")], chunked=False)
        answer.write(b"x" * 60_000)

    engine.answer = whole
    client = await sidecar.client(receive_buffer=SMALL_BUFFER)
    for _ in range(400):
        client.start()
    await eventually(lambda: len(engine.generating) > 5)
    for _ in range(20):
        before = len(engine.generating)
        await asyncio.sleep(0.05)
        if len(engine.generating) == before:
            break
    assert len(engine.generating) < 400
    transport = sidecar.connections[0].transport
    assert transport is not None
    assert transport.get_write_buffer_size() < 2 * MEGABYTE
    for _ in range(400):
        assert len((await client.response()).body) == 60_000
    await sidecar.idle()


async def test_client_that_reads_nothing_for_too_long_is_dropped(
    quick: None, engine: ScriptedEngine, start: Start
) -> None:
    running = await start(client_stall_s=0.3)
    engine.scripts.append(hose := Firehose(64))
    client = await reader(await running.client(receive_buffer=SMALL_BUFFER))
    await running.idle()
    assert not hose.ended
    assert not running.connections
    with pytest.raises(ConnectionError):
        await client.rest()
    metrics = await running.metrics()
    labels = {"outcome": "client_stalled", "route": CHAT, "status": 200}
    assert total(metrics, "orch_requests_total", **labels) == 1


async def test_slow_client_holds_no_lease_that_the_engine_has_done_with(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    """The engine has written its whole answer; the client has yet to read most of it."""

    async def large(answer: Answer) -> None:
        answer.head(200, EVENT_STREAM)
        for _ in range(64):
            answer.chunk(b"data: " + b"x" * (MEGABYTE // 8) + b"\n\n")
        answer.end()  # the rest lies in the engine's and the kernel's buffers

    engine.scripts.append(large)
    client = await reader(await sidecar.client(receive_buffer=8 * SMALL_BUFFER))
    await eventually(lambda: sidecar.ledger.leased == 0)
    assert len(sidecar.sidecar.watchdog.responses()) == 1  # its answer is still on the way
    other = await sidecar.client()
    assert (await other.post(CHAT, n=4)).status == 200
    response = await client.response()
    assert len(response.body) == 64 * (MEGABYTE // 8 + 8)
    await sidecar.idle()


async def ended(client: Client) -> bool:
    try:
        return await client.rest() == b""
    except ConnectionError:
        return True


async def test_idle_connections_make_room_for_new_ones(
    start: Start, held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start(max_connections=4)
    busy = await started(running)
    await eventually(lambda: held.waiting)
    idle = [await running.client() for _ in range(3)]
    for client in idle:
        assert (await client.get("/livez")).status == 200
    with caplog.at_level(logging.WARNING, "orch.sidecar"):
        for _ in range(9):
            newest = await running.client()
            assert (await newest.get("/livez")).status == 200
            assert len(running.sidecar.connections) == 4
    for client in idle:
        assert await ended(client)
    held.release()
    assert (await busy.response()).status == 200, "it was not idle"
    metrics = await running.metrics()
    assert metrics["orch_connections"] == metrics["orch_connections_limit"] == 4
    assert metrics['orch_connections_closed_total{reason="idle"}'] >= 9
    assert metrics['orch_connections_closed_total{reason="refused"}'] == 0
    assert (
        len([each for each in caplog.messages if "connections of clients is reached" in each]) == 1
    )


async def test_new_connection_is_refused_if_none_is_idle(start: Start, held: Held) -> None:
    running = await start(max_connections=2)
    busy = [await started(running, n=2, seed=seed) for seed in range(2)]
    await eventually(lambda: len(held.waiting) == 2)
    for _ in range(3):
        assert await ended(await running.client())
    assert running.sidecar.connections.refused == 3
    held.release_all()
    for client in busy:
        assert (await client.response()).status == 200
    await asyncio.sleep(0.11)
    assert (await (await running.client()).get("/livez")).status == 200


async def test_clients_that_do_not_leave_after_a_refusal_keep_nobody_out(start: Start) -> None:
    """Their connections are left open for them to read it, for seconds."""
    running = await start(max_connections=2)
    refused = [await running.client() for _ in range(2)]
    for client in refused:
        client.send(b"no request\r\n\r\n")
        assert (await client.response()).status == 400
    for _ in range(4):
        newest = await running.client()
        assert (await newest.get("/livez")).status == 200
    for client in refused:
        assert await ended(client)


def test_limit_is_at_most_half_of_the_descriptors_and_says_so_where_they_are_few(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    half = (1024 - RESERVED_DESCRIPTORS) // 2
    for descriptors, wanted, most, said in (
        (1024, None, half, ""),
        (1024, 10, 10, ""),
        (1024, 100_000, half, f"open files is 1024, which leaves {half} client connections"),
        (64, None, 1, "open files is 64, which leaves 1 client connections"),
        (64, 1, 1, ""),
    ):
        caplog.clear()
        monkeypatch.setattr("resource.getrlimit", lambda _, soft=descriptors: (soft, soft))
        assert connection_limit(wanted) == most
        assert bool(caplog.messages) == bool(said)
        assert said in caplog.text


def ahead(client: Client, *, large: bool) -> None:
    """Sends a request, and so many pipelined bytes that reading pauses until it is answered."""
    client.start(stream=False)
    if large:
        client.send_request("POST", COMPLETIONS, body_of(COMPLETIONS, prompt="x" * 4_000_000))
    else:
        for _ in range(100):
            client.start(stream=False)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("large", [False, True])
async def test_disconnect_behind_pipelined_requests_is_detected(
    start: Start, quick: None, engine: ScriptedEngine, held: Held, large: bool, reset: bool
) -> None:
    running = await start()
    client = await running.client()
    ahead(client, large=large)
    await eventually(lambda: held.waiting)
    if reset:
        client.reset()
    await client.close()
    await running.idle()
    await eventually(lambda: engine.present == 0)
    assert len(engine.generating) == 1
    assert running.connections == []


async def test_connection_closes_before_a_large_pipelined_request(
    start: Start, quick: None, held: Held
) -> None:
    """While it is unread, a disconnect of its client would not be detected."""
    running = await start()
    client = await running.client()
    ahead(client, large=True)
    await eventually(lambda: held.waiting)
    [connection] = running.connections
    await eventually(lambda: connection._close)
    held.release()
    response = await client.response()
    assert (response.status, response.header("connection")) == (200, "close")
    assert await ended(client)


async def unread(running: Running) -> Client:
    """Returns a client that has sent requests and does not read the responses."""
    client = await running.client(receive_buffer=4096)
    for _ in range(2000):
        client.send_request("GET", "/metrics")
    return client


async def test_client_that_reads_no_responses_is_dropped(start: Start, quick: None) -> None:
    running = await start(max_connections=2, client_stall_s=0.3)
    for _ in range(2):
        await unread(running)
    connections = running.sidecar.connections
    await eventually(lambda: connections.closed_stalled == 2)
    await eventually(lambda: len(connections) == 0 and running.connections == [])
    assert (await (await running.client()).get("/livez")).status == 200


UPGRADE: Any = [("Connection", "Upgrade, HTTP2-Settings"), ("HTTP2-Settings", "AAMAAABk")]


@pytest.mark.parametrize(
    ("path", "protocol"), [(CHAT, "h2c"), ("/livez", "websocket"), ("/nothing", "TLS/1.0")]
)
async def test_connection_is_closed_after_an_unsupported_upgrade(
    sidecar: Running, engine: ScriptedEngine, path: str, protocol: str
) -> None:
    """Bytes that follow it may be lost, and the client is informed."""
    client = await sidecar.client()
    method, body = ("POST", body_of(CHAT)) if path == CHAT else ("GET", None)
    client.send_request(method, path, body, [("Upgrade", protocol), *UPGRADE])
    client.start(COMPLETIONS)
    response = await client.response(method)
    assert response.status == (404 if path == "/nothing" else 200)
    assert response.header("connection") == "close"
    assert await ended(client)
    assert len(engine.generating) == (path == CHAT)


async def test_connection_of_an_operator_is_closed_too(sidecar: Running) -> None:
    client = await Client.connect(sidecar.sidecar.admin_port)
    client.send_request("GET", "/livez", None, [("Upgrade", "h2c"), *UPGRADE])
    response = await client.response("GET")
    assert response.header("connection") == "close"
    assert await ended(client)
    await client.close()
