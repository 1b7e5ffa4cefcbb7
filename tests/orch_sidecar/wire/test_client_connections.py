"""Checks of many connections: in parts, between which the event loop runs."""

from __future__ import annotations

import asyncio
import errno
from types import SimpleNamespace
from typing import Any, cast

from orch_sidecar.api.refusal import Refusal
from orch_sidecar.wire.client_connection import ClientConnection
from orch_sidecar.wire.client_connections import (
    CONNECTIONS_PER_TURN,
    ActiveResponse,
    ClientConnections,
)


class Unread:
    """A connection whose client reads nothing of what was sent."""

    transport: asyncio.Transport | None = None
    response: ActiveResponse | None = None
    is_idle = reads_ahead = False

    def __init__(self) -> None:
        self.unsent_bytes = 1000
        self.aborted = False

    def force_close(self) -> None:
        raise AssertionError("it is not idle")

    def close_after_current(self) -> None:
        raise AssertionError("it reads nothing ahead")

    def abort(self) -> None:
        self.aborted = True

    def refuse_upload(self, refusal: Refusal) -> None:
        raise AssertionError("nothing arrives")


async def test_event_loop_runs_between_parts_of_a_check() -> None:
    connections = ClientConnections(limit=10_000, name="clients")
    unread = [Unread() for _ in range(2 * CONNECTIONS_PER_TURN + 1)]
    for connection in unread:
        assert connections.enter(connection)
    for _ in range(2):
        list(connections.check(1.0, 1.0))
    assert not any(connection.aborted for connection in unread)
    unread[0].unsent_bytes -= 1  # this one reads again
    check = connections.check(1.0, 1.0)
    next(check)
    assert sum(connection.aborted for connection in unread) == CONNECTIONS_PER_TURN - 1
    connections.leave(unread[-1])  # it ends meanwhile
    unread[-1].unsent_bytes = 0
    assert len(list(check)) == 2
    assert connections.closed_stalled == 2 * CONNECTIONS_PER_TURN - 1
    assert not unread[0].aborted


async def test_client_that_has_left_does_not_fail_the_end_of_its_connection() -> None:
    """asyncio's own event loop says that nobody is there."""

    def gone() -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    connection = SimpleNamespace(
        transport=SimpleNamespace(
            is_closing=lambda: False, write_eof=gone, resume_reading=lambda: None
        ),
        _loop=asyncio.get_running_loop(),
        _lingering_time=0.0,
    )
    last = SimpleNamespace(asks_to_close=False)
    assert not await ClientConnection._linger(cast(Any, connection), cast(Any, last))
