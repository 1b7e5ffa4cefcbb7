"""Client and engine connections are kept, reused and closed independently."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from orch_sidecar.wire import engine_connection
from orch_sidecar.wire.client_request import MOST_AHEAD, ClientRequest
from tests.integration.client import CHAT, body_of
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.scripts import closes
from tests.integration.wire import Answer
from vllm_plugin.contracts.lease_protocol import CLAIMS_PATH

WRONG = (("X-Orch-Class", "none"),)


async def test_http_1_0_client_gets_plain_bytes_and_the_end_of_the_connection(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    client = await sidecar.client()
    document = body_of(CHAT, stream=True)
    response = await client.request("POST", CHAT, document, version="1.0")
    assert response.header("transfer-encoding") is None
    assert response.header("connection") == "close"
    assert response.body == response.raw
    assert response.body.startswith(b"data: {")
    assert response.body.endswith(b"data: [DONE]\n\n")
    assert await client.rest() == b""


async def test_pipelined_requests_are_answered_in_order(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    async def echo(answer: Answer) -> None:
        await asyncio.sleep(0.002 * (3 - answer.request.json()["seed"] % 3))
        answer.json({"seed": answer.request.json()["seed"]})

    engine.answer = echo
    client = await sidecar.client()
    for seed in range(6):
        client.start(CHAT, stream=False, seed=seed)
        client.send_request("GET", "/livez")
    for seed in range(6):
        assert (await client.response()).json() == {"seed": seed}
        assert (await client.response("GET")).json() == {"live": True}


async def test_post_is_never_sent_twice_even_if_a_reused_connection_fails(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    client = await sidecar.client()
    await client.post()

    engine.scripts.append(closes)
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
    assert engine_connection.REUSE_WITHIN_S == 2.0
    monkeypatch.setattr(engine_connection, "REUSE_WITHIN_S", 60.0)
    client = await sidecar.client()
    await client.post()
    sidecar.pool.connections.prune()
    await client.post()
    monkeypatch.setattr(engine_connection, "REUSE_WITHIN_S", 0.01)
    await asyncio.sleep(0.02)
    await client.post()
    first, second, third = (request.connection for request in engine.generating)
    assert first == second != third


async def test_idle_connections_are_closed_after_a_while(
    quick: None, engine: ScriptedEngine, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orch_sidecar.wire.engine_connection.REUSE_WITHIN_S", 0.1)
    running = await start()
    await (await running.client()).post()
    await eventually(lambda: len(engine.wires) == 1)  # the state stream's


async def test_trailer_of_a_chunked_body_is_no_field_of_the_next_request(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    """That may be another client's of a gateway."""
    chunks = 20_000
    body = json.dumps(body_of(CHAT)).encode().ljust(chunks)
    client = await started(sidecar)
    await eventually(lambda: held.waiting)
    client.send_request("POST", CHAT, headers=[("Transfer-Encoding", "chunked")])
    client.send(b"".join(b"1\r\n%c\r\n" % byte for byte in body))
    client.send(b"0\r\nAuthorization: Bearer another\r\n\r\n")
    (connection,) = sidecar.connections
    await eventually(lambda: connection._requests.ready and connection._requests.ready[0].complete)
    held.release()
    client.start(CHAT, stream=False)
    responses = []
    for _ in range(2):
        await eventually(lambda: held.waiting)
        held.release()
        responses.append(await client.response())
    responses.append(await client.response())
    assert [each.header("connection") for each in responses] == [None, None, None]
    assert [request.body for request in engine.generating[1:2]] == [body]
    assert [request.header("authorization") for request in engine.generating] == [None] * 3


@pytest.mark.parametrize(
    ("method", "target", "ahead"),
    [("POST", CHAT, False), ("POST", CHAT, True), ("PUT", f"{CLAIMS_PATH}a?pool=cloud", False)],
)
async def test_body_that_cannot_be_parsed_is_refused_at_once(
    sidecar: Running, held: Held, method: str, target: str, ahead: bool
) -> None:
    client = await (started(sidecar) if ahead else sidecar.client())
    client.send_request(method, target, headers=[("Transfer-Encoding", "chunked")])
    client.send(b"5\r\n12345\r\n")
    if ahead:
        await eventually(lambda: held.waiting)
    else:
        await eventually(lambda: any(each.request is not None for each in sidecar.connections))
    client.send(b"no size\r\n")
    if ahead:
        (connection,) = sidecar.connections
        await eventually(lambda: connection._requests.ended)
        held.release()
        assert (await client.response()).status == 200
    response = await client.response()
    assert (response.status, response.header("connection")) == (400, "close")
    assert response.error["message"] == "the body: Invalid character in chunk size"
    assert await client.rest() == b""


@pytest.mark.parametrize(("target", "more", "status"), [("/unknown", (), 404), (CHAT, WRONG, 400)])
async def test_client_that_is_refused_before_it_sends_its_body_must_connect_again(
    sidecar: Running, target: str, more: tuple[tuple[str, str], ...], status: int
) -> None:
    """What it sends next could be the body, or another request."""
    client = await sidecar.client()
    fields = [("Content-Length", "10"), ("Expect", "100-continue"), *more]
    client.send_request("POST", target, headers=fields)
    response = await client.response()
    assert (response.status, response.header("connection")) == (status, "close")
    assert response.informational == []
    assert await client.rest() == b""


async def test_client_that_goes_on_sending_gets_the_response_before_its_connection_ends(
    sidecar: Running,
) -> None:
    client = await sidecar.client()
    client.send(b"no request\r\n\r\n")
    await eventually(lambda: any(each._close for each in sidecar.connections))
    for _ in range(16):
        client.send(b"more" * 65_536)
    assert (await client.response()).status == 400
    assert await client.rest() == b""
    await client.close()
    await eventually(lambda: not sidecar.connections)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_more_pipelined_requests_than_are_parsed_ahead_are_answered(
    sidecar: Running, method: str
) -> None:
    """The first one's body comes after its head, by which aiohttp's count is wrong by one."""
    client = await sidecar.client()
    body = json.dumps(body_of(CHAT)).encode()
    client.send_request("POST", CHAT, headers=[("Content-Length", str(len(body)))])
    await eventually(lambda: any(each.request is not None for each in sidecar.connections))
    if method == "GET":
        another = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    else:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        another = head.encode() + body
    client.send(body + another * (MOST_AHEAD + 8))
    assert (await client.response()).status == 200
    for _ in range(MOST_AHEAD + 8):
        assert (await client.response(method)).status == 200


async def test_pipelined_requests_take_turns_with_everything_else(sidecar: Running) -> None:
    """None of these waits for anything, and all of them come in one read."""
    requests, turns, loop = 100, 0, asyncio.get_running_loop()
    server: Any = sidecar.sidecar._server
    served_in = list[int]()
    handle = server.request_handler

    def turn() -> None:
        nonlocal turns
        turns += 1
        if len(served_in) < requests:
            loop.call_soon(turn)

    async def counted(http: ClientRequest) -> web.StreamResponse:
        served_in.append(turns)
        response: web.StreamResponse = await handle(http)
        return response

    server.request_handler = counted
    client = await sidecar.client()
    client.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" * requests)
    turn()
    for _ in range(requests):
        assert (await client.response("GET")).status == 200
    assert len(served_in) == requests
    assert max(map(served_in.count, served_in)) <= 2  # the last of a read has none behind it


async def test_body_that_breaks_behind_its_answer_ends_the_connection_without_an_error_of_ours(
    sidecar: Running, caplog: pytest.LogCaptureFixture
) -> None:
    client = await sidecar.client()
    client.send_request("POST", "/none", None, [("Transfer-Encoding", "chunked")])
    assert (await client.response()).status == 404
    client.send(b"no size\r\n")
    assert await client.rest() == b""
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []
