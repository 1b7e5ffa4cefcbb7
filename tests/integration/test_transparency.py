"""What the engine answers is what the client gets, minus what belongs to the connection."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.integration.answers import EVENT_STREAM
from tests.integration.client import CHAT
from tests.integration.running import Running, eventually
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


async def test_expect_100_continue_is_answered_here_and_not_passed(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    client = await sidecar.client()
    body = b'{"model": "tiny", "messages": []}'
    fields = [("Expect", "100-continue"), ("Content-Length", str(len(body)))]
    client.send_request("POST", CHAT, None, fields)
    await client.seen(b"HTTP/1.1 100 Continue\r\n\r\n")
    client.send(body)
    response = await client.response()
    assert (response.status, response.informational) == (200, [100])
    assert engine.generating[0].header("expect") is None


async def test_body_reaches_the_engine_byte_for_byte_whatever_its_framing(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    body = b'{"model":"tiny" , "messages":[], "x": "' + b"\xc3\xa9" * 1_000_000 + b'"}'
    client = await sidecar.client()
    assert (await client.request("POST", CHAT, body)).status == 200
    client.send_request("POST", CHAT, None, [("Transfer-Encoding", "chunked")])
    for start in range(0, len(body), 50_001):
        piece = body[start : start + 50_001]
        client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
    client.send(b"0\r\n\r\n")
    assert (await client.response()).status == 200
    assert [request.body for request in engine.generating] == [body, body]


async def test_headers_of_the_client_pass_as_they_are(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    sent = [
        ("Authorization", "Bearer mine"),
        ("Content-Type", "application/json; charset=utf-8"),
        ("User-Agent", "test/1"),
        ("X-Stainless-Lang", "python"),
        ("Accept", "text/event-stream"),
        ("X-Twice", "1"),
        ("X-Twice", "2"),
        ("X-Name", "J\xfcrgen \u4f60"),
    ]
    assert (await (await sidecar.client()).post(CHAT, sent)).status == 200
    request = engine.generating[0]
    got = [(n, v.encode("latin-1").decode()) for n, v in request.fields]
    for name, value in sent:
        assert (name.lower(), value) in got
    assert request.header("host") == f"127.0.0.1:{engine.port}"


@pytest.mark.parametrize(
    ("method", "path", "upstream"),
    [
        ("GET", "/v1/models", "/v1/models"),
        ("GET", "/version", "/version"),
        ("GET", "/metrics/engine", "/metrics"),
        ("POST", "/tokenize", "/tokenize"),
        ("POST", "/detokenize", "/detokenize"),
        ("POST", "/v1/messages/count_tokens", "/v1/messages/count_tokens"),
    ],
)
async def test_endpoints_without_admission_pass_while_every_slot_is_taken(
    engine: ScriptedEngine, sidecar: Running, method: str, path: str, upstream: str
) -> None:
    hold = asyncio.Event()

    async def wait(answer: Answer) -> None:
        await hold.wait()
        answer.json({})

    engine.scripts.append(wait)
    busy, client = await sidecar.client(), await sidecar.client()
    busy.start(CHAT, stream=False, n=4)
    await eventually(lambda: engine.generating)
    response = await client.request(method, path, {"prompt": "x"} if method == "POST" else None)
    assert response.status == 200
    assert engine.received[-1].target == upstream
    assert engine.received[-1].lease is None
    hold.set()
    assert (await busy.response()).status == 200
