"""What a client sees when the engine fails: the truth, and never a clean end of half an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.integration.answers import EVENT_STREAM
from tests.integration.client import CHAT, COMPLETIONS, MESSAGES, RESPONSES, body_of
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer

EVERY_LOOP = True
APIS = [CHAT, COMPLETIONS, RESPONSES, MESSAGES]

End = Callable[[Answer], None]


def closes(answer: Answer) -> None:
    answer.close()


def resets(answer: Answer) -> None:
    answer.reset()


def sends_garbage(answer: Answer) -> None:
    answer.write(b"!! not a chunk !!\r\n")


ENDS = [closes, resets, sends_garbage]


def streaming(*parts: bytes | str, end: End) -> Callable[[Answer], Awaitable[None]]:
    """A script: a head, events (str) or raw bytes, a pause for them to arrive, and the end."""

    async def script(answer: Answer) -> None:
        answer.head(200, EVENT_STREAM)
        for part in parts:
            if isinstance(part, str):
                answer.event(part)
            else:
                answer.write(part)
        await asyncio.sleep(0.02)
        end(answer)

    return script


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("end", [closes, resets])
@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\ncontent-type: text/ev"])
async def test_engine_that_dies_before_its_head_is_complete_is_a_502_of_the_api(
    engine: ScriptedEngine, sidecar: Running, path: str, end: End, begun: bytes
) -> None:
    async def die(answer: Answer) -> None:
        answer.write(begun)
        await asyncio.sleep(0.01)
        end(answer)

    engine.scripts.append(die)
    client = await sidecar.client()
    response = await client.post(path, stream=True)
    assert response.status == 502
    document = response.json()
    assert document.get("type") == ("error" if path == MESSAGES else None)
    assert document["error"]["type"] == ("api_error" if path == MESSAGES else "server_error")
    assert document["error"]["code"] == "engine_failed"
    assert len(engine.generating) == 1  # it is not asked twice
    await sidecar.idle()
    assert (await client.post(path)).status == 200  # the client's connection goes on


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_stream_that_breaks_between_events_ends_with_an_error_and_done(
    engine: ScriptedEngine, sidecar: Running, path: str, end: End
) -> None:
    engine.scripts.append(streaming('{"a": 1}', '{"b": 2}', end=end))
    client = await sidecar.client()
    response = await client.post(path, stream=True)
    assert response.status == 200
    events = response.body.decode().split("\n\n")
    assert events[:2] == ['data: {"a": 1}', 'data: {"b": 2}']
    assert events[3:] == ["data: [DONE]", ""]
    error = json.loads(events[2].removeprefix("data: "))["error"]
    assert (error["code"], error["type"], error["retriable"]) == (
        "engine_failed",
        "server_error",
        True,
    )
    await sidecar.idle()
    assert (await client.post(path)).status == 200  # the framing is whole: it may go on


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
async def test_stream_that_breaks_between_events_ends_with_an_error_event(
    engine: ScriptedEngine, sidecar: Running, path: str, end: End
) -> None:
    engine.scripts.append(streaming('{"a": 1}', end=end))
    client = await sidecar.client()
    response = await client.post(path, stream=True)
    first, second, rest = response.body.decode().split("\n\n")
    assert (first, rest) == ('data: {"a": 1}', "")
    name, data = second.split("\n")
    assert name == "event: error"
    document: dict[str, Any] = json.loads(data.removeprefix("data: "))
    assert document["type"] == "error"
    if path == MESSAGES:
        assert document["error"]["type"] == "api_error"
        assert document["error"]["message"]
    else:
        assert document["code"] == "engine_failed"
        assert document["message"]
        assert "param" in document
    await sidecar.idle()
    assert (await client.post(path)).status == 200


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "parts",
    [
        [b"8\r\ndata: {}\r\n"],  # a chunk that ends in the middle of an event
        [b"9\r\ndata: {}\n\r\n"],
        ['{"a": 1}', b"8\r\ndata: {}\r\n"],
        [b"7\r\ndata: x\r\n", b"1\r\n\n\r\n"],  # the line ends, the event does not
        [b"7\r\ndata: x\r\n", b"2\r\n\r\n\r\n"],
    ],
)
async def test_stream_that_breaks_within_an_event_is_aborted(
    engine: ScriptedEngine, sidecar: Running, parts: list[bytes | str], end: End
) -> None:
    engine.scripts.append(streaming(*parts, end=end))
    client = await sidecar.client()
    client.start()
    aborted = await client.aborted()
    assert b"error" not in aborted.body
    await sidecar.idle()


@pytest.mark.parametrize("end", [closes, resets])
@pytest.mark.parametrize(
    "partial", [b"1", b"12", b"12\r", b"12\r\n", b"12\r\ndata: {", b"9\r\ndata: x\n\n", b"0\r\n"]
)
async def test_chunk_that_is_half_sent_when_the_engine_dies_is_held_back(
    engine: ScriptedEngine, sidecar: Running, partial: bytes, end: End
) -> None:
    """So what went out last ended an event, and the failure can be said."""
    engine.scripts.append(streaming('{"a": 1}', partial, end=end))
    client = await sidecar.client()
    response = await client.post(stream=True)
    events = response.body.decode().split("\n\n")
    assert events[0] == 'data: {"a": 1}'
    assert events[1].startswith('data: {"error": ')
    assert events[2:] == ["data: [DONE]", ""]
    await sidecar.idle()


@pytest.mark.parametrize("line", [b"data: x\n\n", b"data: x\n\n\r\n"])
async def test_large_chunk_that_breaks_is_aborted(
    engine: ScriptedEngine, sidecar: Running, line: bytes
) -> None:
    """It is too large to be held back, so half of it has gone out, whatever that ends with."""
    engine.scripts.append(streaming('{"a": 1}', b"100000\r\n" + line * 30_000, end=closes))
    client = await sidecar.client()
    client.start()
    aborted = await client.aborted()
    assert b'"error"' not in aborted.body
    await sidecar.idle()


@pytest.mark.parametrize("end", [closes, resets])
async def test_answer_with_a_length_that_is_cut_short_is_aborted(
    engine: ScriptedEngine, sidecar: Running, end: End
) -> None:
    async def cut(answer: Answer) -> None:
        answer.head(200, [("content-length", "100")], chunked=False)
        answer.write(b'{"choices": [')
        await asyncio.sleep(0.02)
        end(answer)

    engine.scripts.append(cut)
    client = await sidecar.client()
    client.start(stream=False)
    assert (await client.aborted()).body in (b'{"choices": [', b"")
    await sidecar.idle()


async def test_chunked_json_that_is_cut_short_is_aborted(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    """No event stream, so nothing can be said in it, whatever its last bytes look like."""

    async def cut(answer: Answer) -> None:
        answer.head(200, [("content-type", "application/json")])
        answer.chunk(b'{"choices": [\n\n')
        await asyncio.sleep(0.02)
        answer.close()

    engine.scripts.append(cut)
    client = await sidecar.client()
    client.start(stream=False)
    await client.aborted()
    await sidecar.idle()


async def test_http_1_0_client_of_a_broken_stream_is_told_too(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    engine.scripts.append(streaming('{"a": 1}', end=closes))
    client = await sidecar.client()
    response = await client.request("POST", CHAT, body_of(CHAT, stream=True), version="1.0")
    assert b'data: {"error"' in response.body
    assert response.body.endswith(b"data: [DONE]\n\n")
    engine.scripts.append(streaming('{"a": 1}', b"8\r\ndata: {}\r\n", end=closes))
    client = await sidecar.client()
    client.send_request("POST", CHAT, body_of(CHAT, stream=True), version="1.0")
    with pytest.raises(ConnectionError):  # a close would look like the end of the answer
        await client.rest()


async def test_close_delimited_answer_that_is_reset_is_aborted(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    async def cut(answer: Answer) -> None:
        answer.head(200, [("content-type", "text/plain")], chunked=False)
        answer.write(b"half of")
        await asyncio.sleep(0.02)
        answer.reset()

    engine.scripts.append(cut)
    client = await sidecar.client()
    client.start(stream=False)
    with pytest.raises(ConnectionError):
        await client.rest()


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabcd\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-3\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcdef",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000,
        b"\x00" * 100_000,
    ],
)
async def test_answer_that_is_not_http_is_a_502_and_its_connection_not_used_again(
    engine: ScriptedEngine, sidecar: Running, garbage: bytes
) -> None:
    async def babble(answer: Answer) -> None:
        answer.write(garbage)
        await asyncio.sleep(0.05)

    engine.scripts.append(babble)
    client = await sidecar.client()
    response = await client.post()
    assert response.status == 502
    assert response.error["code"] == "engine_failed"
    await sidecar.idle()
    assert (await client.post()).status == 200
    first, second = engine.generating
    assert first.connection != second.connection


@pytest.mark.parametrize(
    "answer_bytes",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ],
)
async def test_bytes_after_the_answer_end_its_connection(
    engine: ScriptedEngine, sidecar: Running, answer_bytes: bytes
) -> None:
    async def too_much(answer: Answer) -> None:
        answer.write(answer_bytes)
        await asyncio.sleep(0.02)
        answer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nother")

    engine.scripts.append(too_much)
    client = await sidecar.client()
    assert (await client.post()).body == b"ok"
    await asyncio.sleep(0.05)
    assert b"choices" in (await client.post()).body
    first, second = engine.generating
    assert first.connection != second.connection


async def test_post_is_never_sent_twice_even_if_a_kept_connection_dies_on_it(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    client = await sidecar.client()
    await client.post()

    async def die(answer: Answer) -> None:
        answer.close()

    engine.scripts.append(die)
    assert (await client.post()).status == 502
    assert len(engine.generating) == 2
    first, second = engine.generating
    assert first.connection == second.connection


async def test_connection_that_the_engine_closed_while_idle_is_not_used(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    client = await sidecar.client()
    for _ in range(3):
        assert (await client.post()).status == 200
        for wire in list(engine.wires):
            if not wire.streams_state and wire.transport is not None:
                wire.transport.close()
        await asyncio.sleep(0.01)
    assert len({request.connection for request in engine.generating}) == 3


async def test_idle_connection_older_than_two_seconds_is_not_used(
    engine: ScriptedEngine, sidecar: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orch_sidecar import upstream

    assert upstream.REUSE_WITHIN_S == 2.0
    monkeypatch.setattr(upstream, "REUSE_WITHIN_S", 0.1)
    client = await sidecar.client()
    await client.post()
    await asyncio.sleep(0.02)
    await client.post()
    await asyncio.sleep(0.15)
    await client.post()
    first, second, third = (request.connection for request in engine.generating)
    assert first == second != third


async def test_idle_connections_are_closed_after_a_while(
    quick: None, engine: ScriptedEngine, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orch_sidecar.upstream.REUSE_WITHIN_S", 0.1)
    running = await start()
    await (await running.client()).post()
    await eventually(lambda: len(engine.wires) == 1)  # the state stream's


async def test_engine_that_says_nothing_is_a_504_and_its_lease_waits(
    quick: None, engine: ScriptedEngine, start: Start
) -> None:
    running = await start(engine_silence_s=0.2)
    engine.faults.holds_aborted = asyncio.Event()

    async def silence(answer: Answer) -> None:
        await asyncio.sleep(60)

    engine.scripts.append(silence)
    client = await running.client()
    response = await client.post()
    assert response.status == 504
    assert response.error["code"] == "engine_timeout"
    assert running.ledger.leased == 1
    engine.faults.holds_aborted.set()
    await running.idle()


async def test_stream_that_falls_silent_is_told_so(
    quick: None, engine: ScriptedEngine, start: Start
) -> None:
    running = await start(engine_silence_s=0.2)

    async def stuck(answer: Answer) -> None:
        answer.head(200, EVENT_STREAM)
        answer.event("a")
        await asyncio.sleep(60)

    engine.scripts.append(stuck)
    response = await (await running.client()).post(stream=True)
    assert response.body.startswith(b'data: a\n\ndata: {"error": ')
    assert b"engine_timeout" in response.body
    await running.idle()


async def test_slow_stream_is_no_silence(quick: None, engine: ScriptedEngine, start: Start) -> None:
    running = await start(engine_silence_s=0.3)

    async def slow(answer: Answer) -> None:
        answer.head(200, EVENT_STREAM)
        for _ in range(6):
            answer.event("a")
            await asyncio.sleep(0.1)
        answer.end()

    engine.scripts.append(slow)
    response = await (await running.client()).post(stream=True)
    assert response.body == b"data: a\n\n" * 6


async def test_engine_that_takes_no_connections_is_a_503(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    """In the instant before the state stream tells of it."""
    sidecar.pool.connections._port = 1
    response = await (await sidecar.client()).post()
    assert response.status == 503
    assert response.error["code"] == "engine_down"
    assert sidecar.ledger.leases() == 0
    assert engine.generating == []
