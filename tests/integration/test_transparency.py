"""What the engine answers is what the client gets, minus what belongs to the connection."""

from __future__ import annotations

import asyncio
import random

from tests.integration.answers import EVENT_STREAM
from tests.integration.running import Running
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer


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
