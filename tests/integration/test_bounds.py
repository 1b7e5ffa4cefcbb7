"""What is too large, too deep, too slow or not understood is refused before the engine hears."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.integration.client import CHAT, MESSAGES, body_of
from tests.integration.running import Running, Start, total
from tests.integration.scripted_engine import ScriptedEngine


@pytest.mark.parametrize("path", [CHAT, MESSAGES, "/tokenize"])
async def test_body_that_is_declared_too_large_is_refused_before_it_comes(
    engine: ScriptedEngine, start: Start, path: str
) -> None:
    running = await start(max_body_bytes=2048)
    client = await running.client()
    fields = [("Content-Length", "1000000000"), ("Expect", "100-continue")]
    client.send_request("POST", path, None, fields)
    response = await client.response()
    assert (response.status, response.informational) == (413, [])
    assert response.header("connection") == "close"
    assert response.json()["error"]["code"] == "body_too_large"
    assert response.json().get("type") == ("error" if path == MESSAGES else None)
    assert engine.received == []


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_body_of_just_the_largest_size_passes_and_one_byte_more_does_not(
    engine: ScriptedEngine, start: Start, framing: str
) -> None:
    running = await start(max_body_bytes=2048)
    for size, status in ((2048, 200), (2049, 413)):
        document = json.dumps(body_of(CHAT)).encode()
        body = document + b" " * (size - len(document))
        client = await running.client()
        if framing == "length":
            response = await client.request("POST", CHAT, body)
        else:
            client.send_request("POST", CHAT, None, [("Transfer-Encoding", "chunked")])
            client.send(b"%x\r\n%b\r\n0\r\n\r\n" % (size, body))
            response = await client.response()
        assert response.status == status


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Large: " + b"y" * 5000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,  # TLS
        b"GET /v1/models HTTP/3.0\r\nHost: localhost\r\n\r\n",
        b"G\x00T /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
async def test_head_that_is_too_large_or_not_http_is_refused_in_the_envelope(
    engine: ScriptedEngine, start: Start, tmp_path: Path, head: bytes
) -> None:
    path = tmp_path / "requests.jsonl"
    running = await start(max_header_bytes=4096, request_log=str(path))
    client = await running.client()
    client.send(head)
    response = await client.response()
    assert response.status in (400, 431)
    assert response.error["type"] == "invalid_request_error"
    assert response.error["code"] == "invalid_request"
    assert response.header("x-measurement-type") == "batched_online"
    assert "y" * 200 not in response.body.decode()
    assert await client.rest() == b""
    assert engine.received == []
    assert total(await running.metrics(), "orch_requests_total", outcome="invalid_request") == 1
    await running.stop()
    (line,) = map(json.loads, path.read_text().splitlines())
    assert (line["status"], line["outcome"]) == (400, "invalid_request")
    assert line["id"] == response.header("x-orch-request-id")


@pytest.mark.parametrize("path", [CHAT, "/tokenize", "/v1/models", "/livez"])
@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: 18446744073709551615",  # 2^64 - 1, which aiohttp takes for none
        "Content-Length: 5, 5",
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: xchunked",
        "X-A: a\rX-Orch-Lease: 1",
    ],
)
async def test_request_whose_framing_is_in_doubt_is_refused_and_ends_the_connection(
    engine: ScriptedEngine, sidecar: Running, path: str, framing: str
) -> None:
    method = "GET" if path in ("/v1/models", "/livez") else "POST"
    client = await sidecar.client()
    client.send(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n\r\n".encode())
    response = await client.response()
    assert (response.status, response.error["code"]) == (400, "invalid_request")
    client.send(b"{}GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert await client.rest() == b""
    assert engine.received == []


async def test_valid_request_that_comes_with_garbage_is_served_and_the_garbage_refused(
    sidecar: Running,
) -> None:
    client = await sidecar.client()
    client.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n\x00\x01\r\n\r\n")
    assert (await client.response("GET")).json() == {"live": True}
    response = await client.response()
    assert response.status == 400
    assert response.error["message"].startswith("not a valid HTTP request: ")
    assert await client.rest() == b""


async def test_header_of_less_than_the_limit_passes(engine: ScriptedEngine, start: Start) -> None:
    running = await start(max_header_bytes=16_384)
    response = await (await running.client()).post(CHAT, [("X-Large", "y" * 12_000)])
    assert response.status == 200
    assert engine.generating[0].header("x-large") == "y" * 12_000


@pytest.mark.parametrize(
    "encoding",
    [
        ("Content-Encoding", "gzip"),
        ("content-encoding", "BR"),
        ("Transfer-Encoding", "gzip, chunked"),
    ],
)
async def test_compressed_body_is_not_understood_and_not_passed_on(
    engine: ScriptedEngine, sidecar: Running, encoding: tuple[str, str]
) -> None:
    body = gzip.compress(json.dumps(body_of(CHAT)).encode())
    client = await sidecar.client()
    if encoding[0] == "Transfer-Encoding":
        client.send_request("POST", CHAT, None, [encoding])
        client.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        response = await client.response()
    else:
        response = await client.request("POST", CHAT, body, [encoding])
    assert response.status == 415
    assert response.error["code"] == "unsupported_encoding"
    assert engine.received == []
    again = await sidecar.client()
    assert (await again.post(CHAT, [("Content-Encoding", "identity")])).status == 200


async def test_body_that_comes_too_slowly_is_refused_and_others_are_not_delayed(
    engine: ScriptedEngine, start: Start
) -> None:
    running = await start(body_timeout_s=0.2)
    slow = await running.client()
    slow.send_request("POST", CHAT, None, [("Content-Length", "100")])
    slow.send(b'{"model": ')
    assert (await (await running.client()).post()).status == 200
    response = await slow.response()
    assert response.status == 400
    assert response.error["code"] == "body_timeout"
    assert response.header("connection") == "close"
    assert len(engine.generating) == 1


@pytest.mark.parametrize("path", [CHAT, MESSAGES, "/tokenize"])
@pytest.mark.parametrize("given", ["", "text/plain", "application/json ; charset=utf-8"])
async def test_body_of_another_type_is_refused_before_it_waits(
    engine: ScriptedEngine, sidecar: Running, path: str, given: str
) -> None:
    """As vLLM compares it."""
    client = await sidecar.client()
    for accepted in ("application/json", "Application/JSON;charset=utf-8"):
        fields = [("Content-Type", accepted)]
        assert (await client.request("POST", path, body_of(CHAT), fields)).status == 200
    reached = len(engine.received)
    response = await client.request("POST", path, body_of(CHAT), [("Content-Type", given)])
    assert (response.status, response.header("connection")) == (400, None)
    message = response.error["message"]
    assert message == f"Content-Type must be application/json, not {given!r}"
    assert len(engine.received) == reached
