"""A client that does not read delays its own answer, not the sidecar's memory, not others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.integration.answers import EVENT_STREAM
from tests.integration.client import CHAT, Client
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
