"""An answer that breaks: the client gets the error, never a clean end of half of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.integration.answers import EVENT_STREAM
from tests.integration.client import CHAT, COMPLETIONS, MESSAGES, RESPONSES, body_of
from tests.integration.running import Running
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
    """So what went out last ended an event, and the failure can be reported."""
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
    """No event stream, so nothing can be reported in it, whatever its last bytes look like."""

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


async def test_http_1_0_client_of_a_broken_stream_gets_the_error_too(
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
