"""Streams that are faster than any engine decodes are read now and then; all others at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.api.usage import MAX_PIECES
from orch_sidecar.proxy.engine_response import FAST_PER_S
from orch_sidecar.wire.engine_connection import REST_S
from tests.orch_sidecar.broadcasting import DONE, STREAM_HEAD, chunk, event
from tests.orch_sidecar.relayed import Relayed

EVENT = chunk(event("a"))
CHUNKED_JSON = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
)


class Loop:
    """An event loop's clock. `timers`: what runs later, and in how many seconds."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, after_s: float, run: Callable[[], None]) -> None:
        self.timers.append((after_s, run))

    def run(self) -> None:
        [(after_s, run)] = self.timers
        assert after_s == REST_S
        self.timers.clear()
        self.now += after_s
        run()


def relayed(*, stream: bool = True) -> tuple[Relayed, Loop]:
    """A response whose head has arrived."""
    relayed, loop = Relayed(stream=stream), Loop()
    relayed.response._connections.loop = cast(asyncio.AbstractEventLoop, loop)
    return relayed.sends(STREAM_HEAD if stream else CHUNKED_JSON), loop


def send(to: Relayed, loop: Loop, per_s: float, events: int = MAX_PIECES + 1) -> None:
    """Sends single events at that rate."""
    for _ in range(events):
        loop.now += 1 / per_s
        to.sends(EVENT)


async def test_stream_of_very_many_events_rests_between_two_reads() -> None:
    response, loop = relayed()
    send(response, loop, 2 * FAST_PER_S)
    assert not response.engine.reading
    loop.run()
    assert response.engine.reading
    response.sends(10 * EVENT)
    assert not response.engine.reading
    loop.run()
    response.sends(chunk(DONE) + b"0\r\n\r\n")
    assert response.response.complete
    assert response.engine.reading
    assert not loop.timers
    _, body = response.got
    assert body == (MAX_PIECES + 11) * event("a") + DONE


async def test_stream_of_an_engine_never_rests() -> None:
    response, loop = relayed()
    for _ in range(20):
        send(response, loop, FAST_PER_S / 2, 10)
        assert response.engine.reading
    assert not loop.timers


async def test_stream_that_has_become_slow_is_read_at_once_again() -> None:
    response, loop = relayed()
    send(response, loop, 2 * FAST_PER_S)
    for _ in range(MAX_PIECES + 2):
        if loop.timers:
            loop.run()
        send(response, loop, FAST_PER_S / 20, 1)
    assert response.engine.reading
    send(response, loop, FAST_PER_S / 20, 10)
    assert not loop.timers


async def test_long_answer_that_is_no_stream_never_rests() -> None:
    response, loop = relayed(stream=False)
    send(response, loop, 100 * FAST_PER_S, 5 * MAX_PIECES)
    assert response.engine.reading
    assert not loop.timers


async def test_rest_ends_no_pause_of_a_client_and_nothing_of_an_ended_response() -> None:
    response, loop = relayed()
    send(response, loop, 2 * FAST_PER_S)
    response.writer.pause()
    loop.run()
    assert not response.engine.reading
    response.writer.resume()
    assert response.engine.reading
    response.sends(10 * EVENT)
    response.response.fail(Refusal(Reason.CANCELLED, "cancelled"))
    engine: Any = response.engine
    assert engine.closed
    loop.run()
    assert not engine.reading
