"""Requests of one turn of the event loop start in order; what it writes goes out at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from aiohttp import web

from orch_sidecar.wire.client_connection import ClientConnection
from orch_sidecar.wire.client_connections import ClientConnections
from orch_sidecar.wire.client_request import ClientRequest
from orch_sidecar.wire.engine_connection import EngineConnection
from orch_sidecar.wire.turn import Turn
from tests.orch_sidecar.broadcasting import Transport

GET = b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n"


class Burst:
    """Clients of one server that ask at the same time. `started`: the targets of their requests."""

    def __init__(self, *, cancels: bool = True) -> None:
        """`cancels`: handlers, when their clients leave."""
        self.connections = ClientConnections(10_000, "clients")
        self.started: list[str] = []
        self.server = web.Server(cast(Any, self.handle), handler_cancellation=cancels)
        self.clients: list[tuple[ClientConnection, Transport]] = []

    async def handle(self, http: ClientRequest) -> web.StreamResponse:
        self.started.append(http.target)
        return web.Response(text=http.target)

    def connect(self) -> None:
        loop, transport = asyncio.get_running_loop(), Transport()
        connection = ClientConnection(
            self.server, connections=self.connections, loop=loop, access_log=None
        )
        connection.connection_made(transport)
        self.clients.append((connection, transport))

    def ask(self) -> None:
        """Has all clients ask, as if the event loop had read from them in one turn."""
        for number, (connection, _) in enumerate(self.clients):
            connection.data_received(GET % number)


@pytest.fixture(params=[True, False], ids=["of clients", "of operators"])
async def burst(request: pytest.FixtureRequest) -> AsyncIterator[Burst]:
    burst = Burst(cancels=request.param)
    for _ in range(20):
        burst.connect()
    await asyncio.sleep(0)  # their tasks wait for requests
    yield burst
    for connection, _ in burst.clients:
        connection.connection_lost(None)
    await asyncio.sleep(0)


async def test_requests_of_one_turn_start_in_their_order_and_survive_an_orderly_stop(
    burst: Burst,
) -> None:
    burst.ask()
    last, client = burst.clients[-1]
    assert not last.is_idle
    last.close()
    await asyncio.sleep(0)
    assert burst.started == [f"/{number}" for number in range(20)]
    assert client.data.startswith(b"HTTP/1.1 200 OK")
    assert last.turn.starting == last.turn.active == 0


async def test_clients_that_leave_before_they_are_served_keep_nobody_waiting(
    burst: Burst, caplog: pytest.LogCaptureFixture
) -> None:
    burst.ask()
    for connection, _ in burst.clients[4:-1]:
        connection.connection_lost(None)
    await asyncio.sleep(0)
    assert burst.started == ["/0", "/1", "/2", "/3", "/19"]
    assert (burst.connections.turn.starting, burst.connections.turn.active) == (0, 0)
    assert not caplog.records


async def test_what_is_written_in_a_turn_goes_out_at_its_end_but_to_nobody_who_left() -> None:
    turn, first, second, gone = Turn(), Transport(), Transport(), Transport()
    for transport in (first, gone, second, first):
        turn.write(transport, b"a")
    assert not first.data
    gone.abort()
    await asyncio.sleep(0)
    assert (first.data, second.data, gone.data) == (b"aa", b"a", b"")
    turn.write(second, b"b")
    await asyncio.sleep(0)
    assert second.data == b"ab"


class Nested(Transport):
    """Has its turn written, and more, while it is written to, as one may that becomes full.
    `fails`: a write raises."""

    def __init__(self, turn: Turn, *, fails: bool = False) -> None:
        super().__init__()
        self.turn = turn
        self.fails = fails
        self.others: list[Transport] = []

    def write(self, data: Any) -> None:
        if self.fails:
            raise RuntimeError("Cannot call write() after write_eof()")
        super().write(data)
        others, self.others = self.others, []
        for other in others:
            self.turn.write(other, b"later")
        self.turn.flush()


async def test_order_of_bytes_is_kept_by_writes_within_writes() -> None:
    turn, other = Turn(), Transport()
    first = Nested(turn)
    first.others = [other, first]
    turn.write(first, b"first ")
    turn.write(other, b"first ")
    turn.write(first, b"second ")
    await asyncio.sleep(0)
    assert (first.data, other.data) == (b"first second later", b"first later")


async def test_transport_that_cannot_be_written_to_loses_nothing_of_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    turn, other = Turn(), Transport()
    broken = Nested(turn, fails=True)
    for transport in (broken, other, broken, other):
        turn.write(transport, b"a")
    turn.flush()
    assert (other.data, broken.aborted) == (b"aa", True)
    assert len(caplog.records) == 1
    turn.write(other, b"b")
    await asyncio.sleep(0)
    assert other.data == b"aab"


async def test_requests_of_a_turn_go_to_the_engine_together_with_the_last_one() -> None:
    turn, engines = Turn(), [EngineConnection() for _ in range(3)]
    transports = [Transport() for _ in engines]
    for engine, transport in zip(engines, transports, strict=True):
        engine.connection_made(transport)
    turn.starting = 3
    for engine in engines:
        turn.starting -= 1
        assert not any(each.data for each in transports)
        engine.send(cast(Any, None), b"head ", b"body", turn)
    assert [each.data for each in transports] == 3 * [b"head body"]


async def test_engine_gets_a_request_whose_connection_is_closed_in_the_same_turn() -> None:
    turn, engine, transport = Turn(), EngineConnection(), Transport()
    engine.connection_made(transport)
    turn.starting = 1
    engine.send(cast(Any, None), b"head ", b"body", turn)
    engine.close()
    assert (transport.data, transport.closed) == (b"head body", True)
    await asyncio.sleep(0)
    assert transport.data == b"head body"
