"""What the engine answers is what the client gets, minus what belongs to the connection."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.integration.answers import EVENT_STREAM
from tests.integration.client import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.integration.running import Running
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer

ADDED = {
    "server-timing",
    "x-request-id",
    "x-correlation-id",
    "x-measurement-type",
    "x-orch-request-id",
    "x-orch-queue-position",
    "x-orch-predicted-start-ms",
}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
@pytest.mark.parametrize("stream", [True, False])
async def test_each_api_gets_the_answer_of_the_engine_itself(
    engine: ScriptedEngine, sidecar: Running, path: str, stream: bool
) -> None:
    direct = await Running(sidecar.sidecar, engine.port).client()
    there = await direct.post(path, stream=stream)
    await direct.close()
    here = await (await sidecar.client()).post(path, stream=stream)
    assert (here.status, here.reason) == (there.status, there.reason)
    assert here.raw == there.raw
    assert [field for field in here.fields if field[0] not in ADDED] == there.fields
    assert {name for name, _ in here.fields} >= ADDED


async def test_stream_passes_byte_for_byte_however_it_was_cut(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    dice = random.Random(7)
    client = await sidecar.client()
    for round_ in range(25):
        payloads = [
            dice.randbytes(dice.choice((1, 2, 30, 900, 70_000))) for _ in range(dice.randrange(6))
        ]
        chunks = b"".join(b"%X\r\n%b\r\n" % (len(p), p) for p in payloads) + b"0\r\n\r\n"

        async def cut_up(answer: Answer, chunks: bytes = chunks) -> None:
            answer.head(200, EVENT_STREAM)
            position = 0
            while position < len(chunks):
                if position and dice.random() < 0.5:
                    await asyncio.sleep(dice.choice((0, 0, 0, 0.001)))
                step = dice.choice((1, 1, 2, 3, 700, 100_000))
                answer.write(chunks[position : position + step])
                position += step

        engine.scripts.append(cut_up)
        response = await client.post(stream=True)
        assert response.body == b"".join(payloads), round_
        assert response.raw == chunks, round_


async def test_chunk_reaches_the_client_while_the_answer_goes_on(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    go_on = asyncio.Event()

    async def slow(answer: Answer) -> None:
        answer.head(200, EVENT_STREAM)
        answer.event("first")
        await go_on.wait()
        answer.event("second")
        answer.end()

    engine.answer = slow
    client = await sidecar.client()
    client.start()
    assert b"second" not in await client.seen(b"data: first\n\n")
    go_on.set()
    assert (await client.response()).body == b"data: first\n\ndata: second\n\n"


async def test_answer_with_a_length_keeps_its_length(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    async def long(answer: Answer) -> None:
        answer.head(201, [("content-length", "300000")], reason="Made It", chunked=False)
        answer.write(b"x" * 300_000)

    engine.answer = long
    response = await (await sidecar.client()).post()
    assert (response.status, response.reason) == (201, "Made It")
    assert response.header("content-length") == "300000"
    assert response.body == b"x" * 300_000


async def test_answer_that_ends_with_its_connection_ends_so_here(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    async def until_close(answer: Answer) -> None:
        answer.head(200, [("content-type", "text/plain")], chunked=False)
        answer.write(b"all there is")
        answer.close()

    engine.answer = until_close
    client = await sidecar.client()
    response = await client.post()
    assert response.body == b"all there is"
    assert response.header("connection") == "close"
    assert response.header("content-length") is None
    assert await client.rest() == b""
    await sidecar.idle()


async def test_empty_answers_of_both_framings_are_complete(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    async def no_chunks(answer: Answer) -> None:
        answer.head()
        answer.end()

    async def no_bytes(answer: Answer) -> None:
        answer.head(200, [("content-length", "0")], chunked=False)

    engine.scripts += [no_chunks, no_bytes]
    client = await sidecar.client()
    assert (await client.post()).body == b""
    response = await client.post()
    assert (response.body, response.header("content-length")) == (b"", "0")


@pytest.mark.parametrize("status", [404, 500])
async def test_error_of_the_engine_passes_as_it_is_and_frees_the_slot(
    engine: ScriptedEngine, sidecar: Running, status: int
) -> None:
    document = {"error": {"message": "as vLLM says", "type": "BadRequestError", "code": status}}

    async def refuse(answer: Answer) -> None:
        answer.json(document, status, [("x-engine", "1")])

    engine.answer = refuse
    client = await sidecar.client()
    response = await client.post(stream=True)
    assert (response.status, response.json()) == (status, document)
    assert response.header("x-engine") == "1"
    assert sidecar.ledger.leased == 0
    assert (await client.post()).status == status  # the connection goes on


async def test_headers_of_the_connection_end_here_and_all_others_pass(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    async def many(answer: Answer) -> None:
        fields = [
            ("Connection", "X-Private, keep-alive"),
            ("Connection", "x-other, Content-Length"),
            ("Keep-Alive", "timeout=5"),
            ("X-Private", "no"),
            ("X-Other", "no"),
            ("Proxy-Authenticate", "Basic"),
            ("Upgrade", "h2c"),
            ("Set-Cookie", "a=1"),
            ("Set-Cookie", "b=2"),
            ("X-Odd", "caf\xe9 \x80"),
            ("X-Empty", ""),
            ("Date", "Mon, 01 Jan 2024 00:00:00 GMT"),
        ]
        answer.json({}, 200, fields)

    engine.answer = many
    response = await (await sidecar.client()).post()
    for name in ("connection", "keep-alive", "x-private", "x-other", "proxy-authenticate"):
        assert response.headers(name) == [], name
    assert response.headers("upgrade") == []
    assert response.header("content-length") == "2"  # without it nobody knew where the body ends
    assert response.headers("set-cookie") == ["a=1", "b=2"]
    assert response.header("x-odd") == "caf\xe9 \x80"
    assert response.header("x-empty") == ""
    assert response.header("date") == "Mon, 01 Jan 2024 00:00:00 GMT"
