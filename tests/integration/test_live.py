"""The live document as its readers get it."""

from __future__ import annotations

import asyncio

import pytest

from orch_sidecar.control import live_stream as stream
from tests.integration.client import CHAT, Client
from tests.integration.held import Held, started
from tests.integration.keyed import KeyRing
from tests.integration.live import LiveReader, Readers
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.patience import HANG_S

LIVE = "live document"


async def ended(reader: LiveReader) -> None:
    """Waits until the stream ends."""
    with pytest.raises(ConnectionError):
        await reader.until(lambda _: False)


def producers() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name() == LIVE]


async def test_reader_sees_slots_queue_and_what_became_of_requests(
    sidecar: Running, held: Held, readers: Readers
) -> None:
    reader = await readers.open(sidecar, operator=True)
    first = await reader.next()
    assert reader.events == ["snapshot"]
    assert (first["operator"], first["trace_url"]) == (True, None)
    [pool] = first["pools"]
    assert (pool["name"], pool["measurement_type"]) == ("cloud", "batched_online")
    assert pool["slots"]["total"] == pool["slots"]["free"] == 4
    clients = [await started(sidecar, seed=seed) for seed in range(6)]
    document = await reader.until(lambda it: it["pools"][0]["queued"]["interactive"] == 2)
    [pool] = document["pools"]
    assert (pool["slots"]["interactive"], pool["slots"]["free"]) == (4, 0)
    assert pool["waits"] == {"reason": "slot", "text": "a slot: all 4 are in use"}
    assert [row["position"] for row in pool["queue"]] == [0, 1]
    assert len(pool["admitted"]) == 4
    ids = [row["id"] for row in (*pool["queue"], *pool["admitted"])]
    assert all(len(each) == 32 for each in ids)
    held.release_all()
    await eventually(lambda: len(held.waiting) == 2)
    held.release_all()
    answered = {(await client.response()).header("x-orch-request-id") for client in clients}
    assert answered == set(ids)
    document = await reader.until(lambda it: len(it["requests"]) == 6)
    assert {row["id"] for row in document["requests"].values()} == answered
    assert {row["outcome"] for row in document["requests"].values()} == {"ok"}
    assert document["pools"][0]["waits"] is None
    assert set(reader.events[1:]) == {"update"}


async def test_clients_get_ids_by_which_nothing_can_be_cancelled(
    sidecar: Running, held: Held, readers: Readers
) -> None:
    reader = await readers.open(sidecar)
    clients = [await started(sidecar, seed=seed) for seed in range(5)]
    document = await reader.until(lambda it: it["pools"][0]["queue"])
    assert document["operator"] is False
    [pool] = document["pools"]
    shown = [row["id"] for row in (*pool["queue"], *pool["admitted"])]
    assert [len(each) for each in shown] == [8] * 5
    for each in shown:
        client = await sidecar.client()
        assert (await client.request("POST", f"/v1/requests/{each}/cancel", {})).status == 404
    held.release_all()
    await eventually(lambda: held.waiting)
    held.release_all()
    for client in clients:
        assert (await client.response()).status == 200
    document = await reader.until(lambda it: len(it["requests"]) == 5)
    assert {len(row["id"]) for row in document["requests"].values()} == {8}
    late = await readers.open(sidecar)
    assert (await late.next())["requests"] == document["requests"]


async def test_document_has_neither_prompts_nor_answers_nor_keys(
    start: Start, ring: KeyRing, readers: Readers
) -> None:
    secret = ring.keys["alice"]
    running = await start(api_keys_file=ring.path)
    client = await running.client()
    messages = [{"role": "user", "content": "my secret question"}]
    assert (await client.post(CHAT, [ring.bearer("alice")], messages=messages)).status == 200
    stranger = await running.client()
    await stranger.post(CHAT, [ring.bearer("alice")], model="my secret model")
    reader = await readers.open(running, operator=True)
    document = await reader.until(lambda it: len(it["requests"]) == 2)
    [share] = [each for each in document["pools"][0]["keys"] if each["class"] == "interactive"]
    assert (share["key"], share["share"]) == ("alice", 1.0)
    written = str(document)
    for text in ("my secret", "one two three", secret, secret[:12]):
        assert text not in written


async def test_clients_need_a_key_for_the_data_and_none_for_the_page(
    start: Start, ring: KeyRing, readers: Readers
) -> None:
    running = await start(api_keys_file=ring.path)
    for path in ("/ui", "/ui/app.js", "/ui/style.css"):
        assert (await readers.get(running, path)).status == 200
    refused = await readers.get(running, "/v1/live")
    assert refused.status == 401
    # In a header only: an address is logged and shared.
    assert (await readers.get(running, f"/v1/live?key={ring.keys['alice']}")).status == 401
    reader = await readers.open(running, headers=dict([ring.bearer("alice")]))
    assert (await reader.next())["sidecar"]["keys"] is True
    operator = await readers.open(running, operator=True)
    assert await operator.next()


async def test_stream_of_a_key_that_is_removed_ends(
    start: Start, ring: KeyRing, readers: Readers
) -> None:
    running = await start(api_keys_file=ring.path)
    removed = await readers.open(running, headers=dict([ring.bearer("alice")]))
    other = await readers.open(running, headers=dict([ring.bearer("bob")]))
    operator = await readers.open(running, operator=True)
    for each in (removed, other, operator):
        await each.next()
    ring.remove("alice")
    await running.sidecar.reloader.reload_keys()
    await ended(removed)
    assert len(running.sidecar.live.streams.open) == 2


async def test_one_task_serves_all_readers_and_only_while_there_are_any(
    sidecar: Running, readers: Readers
) -> None:
    assert producers() == []
    one = await readers.open(sidecar)
    two = await readers.open(sidecar, operator=True)
    await one.next()
    await two.next()
    assert producers() == [LIVE]
    for each in (one, two):
        each._response.close()
    await eventually(lambda: producers() == [])
    again = await readers.open(sidecar)
    assert (await again.next())["pools"]


async def test_reader_hears_of_a_quiet_sidecar_that_it_is_alive(
    sidecar: Running, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "ALIVE_EVERY_S", 0.1)
    reader = await readers.open(sidecar)
    await reader.next()
    async with asyncio.timeout(HANG_S):
        while b": nothing new\n\n" not in await reader._response.content.readany():
            pass


async def test_reader_that_takes_nothing_costs_no_memory_and_is_disconnected(
    sidecar: Running, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MAX_LAG_S", 0.5)
    monkeypatch.setattr(stream, "EVENT_EVERY_S", 0.01)
    client = await Client.connect(sidecar.port, receive_buffer=4096)
    client.send(b"GET /v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await eventually(lambda: sidecar.sidecar.live.streams.open)
    [reader] = sidecar.sidecar.live.streams.open.values()
    most, number = 0, 0
    while sidecar.sidecar.live.streams.open:  # until it is disconnected
        number += 1
        # 100 kB, another one each time: more than the system keeps for a connection.
        engine.report(gpu=f"{number} " + "x" * 100_000)
        await asyncio.sleep(0.02)
        most = max(most, reader.transport.get_write_buffer_size())
        assert number < 2000, "it was never disconnected"
    assert 0 < most < 2_000_000
    assert producers() == []
    await client.close()


async def test_reader_that_was_behind_gets_the_whole_document(
    sidecar: Running, readers: Readers, engine: ScriptedEngine
) -> None:
    reader = await readers.open(sidecar)
    await reader.next()
    [own] = sidecar.sidecar.live.streams.open.values()
    own.sent -= 5  # it missed some events
    engine.report(gpu="another")
    await reader.until(lambda it: it["pools"][0]["gpu"] == "another")
    assert reader.events == ["snapshot", "snapshot"]


async def test_fault_of_the_document_ends_its_streams_and_nothing_else(
    sidecar: Running, readers: Readers, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    reader = await readers.open(sidecar)
    await reader.next()
    with monkeypatch.context() as patched:
        patched.setattr(sidecar.sidecar.live.source, "pools", lambda: 1 / 0)
        await ended(reader)
        assert "could not be built" in caplog.text
    assert (await (await sidecar.client()).post()).status == 200
    again = await readers.open(sidecar)
    assert await again.next()
    caplog.clear()


async def test_stopping_sidecar_ends_its_streams(start: Start, readers: Readers) -> None:
    running = await start()
    reader = await readers.open(running)
    await reader.next()
    await running.stop()
    await ended(reader)
