"""An answer that breaks, through sockets: the client gets the error, never a clean end of half of
it. Where it may break, and in which words of each API: `proxy/test_broken_responses.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.integration.answers import EVENT_STREAM
from tests.integration.client import CHAT, COMPLETIONS, MESSAGES, RESPONSES, body_of
from tests.integration.running import Running
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer

EVERY_LOOP = True

End = Callable[[Answer], None]


def closes(answer: Answer) -> None:
    answer.close()


def resets(answer: Answer) -> None:
    answer.reset()


def breaking(*parts: bytes, end: End) -> Callable[[Answer], Awaitable[None]]:
    """A script: a head and raw bytes, a pause for them to arrive, and the end."""

    async def script(answer: Answer) -> None:
        answer.head(200, EVENT_STREAM)
        for part in parts:
            answer.write(part)
        await asyncio.sleep(0.02)
        end(answer)

    return script


WHOLE, HALF = b'10\r\ndata: {"a": 1}\n\n\r\n', b"8\r\ndata: {}\r\n"


@pytest.mark.parametrize(
    ("path", "end", "begun"),
    [
        (CHAT, closes, b""),
        (COMPLETIONS, resets, b""),
        (RESPONSES, closes, b"HTTP/1.1 200 OK\r\ncontent-type: text/ev"),
        (MESSAGES, resets, b"HTTP/1.1 200 OK\r\ncontent-type: text/ev"),
    ],
)
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


@pytest.mark.parametrize("end", [closes, resets])
async def test_stream_that_breaks_between_events_ends_with_an_error_and_done(
    engine: ScriptedEngine, sidecar: Running, end: End
) -> None:
    engine.scripts.append(breaking(WHOLE, end=end))
    client = await sidecar.client()
    response = await client.post(stream=True)
    assert response.status == 200
    first, failed, *rest = response.body.decode().split("\n\n")
    assert first == 'data: {"a": 1}'
    assert failed.startswith('data: {"error": ')
    assert rest == ["data: [DONE]", ""]
    await sidecar.idle()
    assert (await client.post()).status == 200  # the framing is whole: it may go on


@pytest.mark.parametrize("end", [closes, resets])
async def test_stream_that_breaks_within_an_event_is_aborted(
    engine: ScriptedEngine, sidecar: Running, end: End
) -> None:
    engine.scripts.append(breaking(WHOLE, HALF, end=end))
    client = await sidecar.client()
    client.start()
    aborted = await client.aborted()
    assert b"error" not in aborted.body
    await sidecar.idle()


async def test_http_1_0_client_of_a_broken_stream_gets_the_error_too(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    engine.scripts.append(breaking(WHOLE, end=closes))
    client = await sidecar.client()
    response = await client.request("POST", CHAT, body_of(CHAT, stream=True), version="1.0")
    assert b'data: {"error"' in response.body
    assert response.body.endswith(b"data: [DONE]\n\n")
    engine.scripts.append(breaking(WHOLE, HALF, end=closes))
    client = await sidecar.client()
    client.send_request("POST", CHAT, body_of(CHAT, stream=True), version="1.0")
    with pytest.raises(ConnectionError):  # a close would look like the end of the answer
        await client.rest()
