"""What a client asks is what the engine gets, minus what belongs to the connection."""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.client import CHAT
from tests.integration.running import Running, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer


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
