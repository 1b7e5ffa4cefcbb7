"""What the engine answers is what the client gets, minus what belongs to the connection.

The headers that every answer carries: ids, timing, and what kind of measurement it is.
"""

from __future__ import annotations

import asyncio
import random
import re
import time

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


HARMLESS = ["a", "req_0123-abc.DEF:4", "x" * 128, "550e8400-e29b-41d4-a716-446655440000"]


@pytest.mark.parametrize(
    ("name", "status"), [("X-Request-Id", 200), ("X-Correlation-Id", 400), ("X-Request-Id", 404)]
)
async def test_harmless_id_is_echoed(
    engine: ScriptedEngine, sidecar: Running, name: str, status: int
) -> None:
    client = await sidecar.client()
    for given in HARMLESS:
        path = "/nowhere" if status == 404 else CHAT
        response = await client.post(path, [(name, given)], n=0 if status == 400 else 1)
        assert response.status == status
        assert response.header(name) == given


async def test_request_id_reaches_the_engine_and_stands_in_for_a_correlation_id(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    client = await sidecar.client()
    response = await client.post(CHAT, [("X-Request-Id", "mine")])
    assert response.header("x-correlation-id") == "mine"
    assert [v for n, v in engine.generating[0].fields if n == "x-request-id"] == ["mine"]
    response = await client.post(CHAT)
    assert engine.generating[1].header("x-request-id") == response.header("x-request-id")


async def test_engines_own_id_does_not_stand_beside_ours(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    async def with_id(answer: Answer) -> None:
        answer.json({}, 200, [("X-Request-Id", "engines"), ("X-Measurement-Type", "nonsense")])

    engine.answer = with_id
    response = await (await sidecar.client()).post(CHAT, [("X-Request-Id", "mine")])
    assert response.header("x-request-id") == "mine"
    assert response.header("x-measurement-type") == "batched_online"


async def test_server_timing_has_queue_and_first_byte(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    is_queued = asyncio.Event()

    async def slow(answer: Answer) -> None:
        await is_queued.wait()
        await asyncio.sleep(0.05)
        answer.head(200, EVENT_STREAM)
        answer.event("x")
        answer.end()

    engine.answer = slow
    first, second = await sidecar.client(), await sidecar.client()
    first.start(n=4)
    await eventually(lambda: engine.present == 4)
    begin_s = time.monotonic()
    second.start()
    await eventually(lambda: sidecar.queued == 1)
    is_queued.set()
    await first.response()
    timing = (await second.response()).header("server-timing") or ""
    found = re.fullmatch(r"queue;dur=([0-9.]+), ttft;dur=([0-9.]+)", timing)
    assert found, timing
    queue_ms, ttft_ms = float(found[1]), float(found[2])
    assert queue_ms + 1 >= 50
    assert queue_ms + 50 <= ttft_ms + 1
    assert ttft_ms < 1000 * (time.monotonic() - begin_s)
    plain = (await first.post()).header("server-timing") or ""
    assert re.fullmatch(r"queue;dur=[0-9.]+, engine;dur=[0-9.]+", plain)
