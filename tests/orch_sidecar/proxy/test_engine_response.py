"""An engine's response in complete events, however its bytes arrive and however it ends.

Streams that are faster than any engine decodes are read now and then; all others at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.api.usage import MAX_PIECES
from orch_sidecar.proxy.engine_response import FAST_PER_S, EngineResponse
from orch_sidecar.wire import backpressure
from orch_sidecar.wire.engine_connection import REST_S, ConnectionPool
from orch_sidecar.wire.http1 import MAX_BUFFERED_BYTES
from tests.orch_sidecar.answers import cut
from tests.orch_sidecar.broadcasting import (
    DONE,
    EVENTS,
    SHARED_ID,
    STREAM,
    STREAM_HEAD,
    Client,
    Engine,
    broadcast_of,
    chunk,
    event,
    json_answer,
    json_body,
    stream_for,
    whole_for,
)
from tests.orch_sidecar.relayed import Relayed


async def test_events_with_crlf_are_complete_events() -> None:
    broadcast = broadcast_of()
    client = Client("mine").join(broadcast)
    engine = Engine(broadcast)
    first = event("a").replace(b"\n\n", b"\r\n\r\n")
    engine.sends(STREAM_HEAD, chunk(first[:-1]), chunk(first[-1:] + b"data: b"))
    assert client.body == first.replace(SHARED_ID.encode(), b"mine")
    engine.sends(chunk(b"\r\n\r\n"), b"0\r\n\r\n")
    assert client.body.endswith(b"data: b\r\n\r\n")
    assert client.ended_well


async def test_stream_that_ends_with_the_engines_connection_is_framed_for_the_client() -> None:
    broadcast = broadcast_of()
    client = Client("a").join(broadcast)
    engine = Engine(broadcast)
    engine.sends(b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n", EVENTS[0])
    engine.closes()
    got = client.got
    assert got is not None
    assert (got.body, got.end) == (stream_for("a", 1), True)
    assert engine.ending.failure is None


async def test_connection_that_the_engine_closes_is_not_reused() -> None:
    broadcast = broadcast_of()
    Client("a").join(broadcast)
    engine = Engine(broadcast)
    engine.sends(STREAM.replace(b"server: uvicorn", b"connection: close"))
    assert not engine.kept
    assert engine.transport.closed


async def test_event_larger_than_the_limit_reaches_every_client() -> None:
    broadcast = broadcast_of(1000)
    clients = [Client(name).join(broadcast) for name in ("a", "b" * 50)]
    large = event("y, " * 2 * MAX_BUFFERED_BYTES)
    engine = Engine(broadcast)
    engine.sends(STREAM_HEAD, *cut(chunk(large), list(range(0, len(large), 50_000))))
    engine.sends(chunk(DONE), b"0\r\n\r\n")
    for client in clients:
        assert client.body == large.replace(SHARED_ID.encode(), client.name.encode()) + DONE
        assert client.ended_well


async def test_id_is_not_split_in_a_response_sent_in_parts() -> None:
    body = b'{"pad":"' + b"x" * 900 + b'",' + json_body("text")[1:]
    for at in range(901, 901 + 120):
        broadcast = broadcast_of(at - 10)
        client = Client("a").join(broadcast)
        answer = json_answer(body)
        start = len(answer) - len(body)
        Engine(broadcast).sends(answer[: start + at], answer[start + at :])
        assert client.body == body.replace(SHARED_ID.encode(), b"a")


@pytest.mark.parametrize("http10", [False, True])
async def test_json_response_larger_than_the_limit_is_sent_in_parts(http10: bool) -> None:
    broadcast = broadcast_of(1000)
    client = Client("b" * 50).join(broadcast, http10=http10)
    body = json_body("y, " * 5000)
    answer = json_answer(body)
    Engine(broadcast).sends(*cut(answer, list(range(0, len(answer), 700))))
    got = client.got
    assert got is not None
    assert got.body == json_body("y, " * 5000, client.name)
    assert got.field(b"content-length") is None
    assert got.head.chunked is not http10
    assert client.writer.keep_alive is not http10
    assert client.ended_well


async def test_connection_lost_before_the_first_byte_may_be_retried_elsewhere() -> None:
    broadcast = broadcast_of()
    client = Client("a").join(broadcast)
    first = Engine(broadcast)
    first.closes(ConnectionResetError("reset"))
    ending = first.ending
    assert ending.failure is not None
    assert ending.failure.reason is Reason.ENGINE_FAILED
    assert not ending.answered
    assert first.response.unanswered
    assert not client.subscriber.done.done()
    assert broadcast.is_joinable
    second = Engine(broadcast)
    second.sends(STREAM)
    assert client.body == whole_for("a")


async def test_interrupted_response_in_parts_resets_the_connection() -> None:
    broadcast = broadcast_of(1000)
    client = Client("a").join(broadcast)
    engine = Engine(broadcast)
    engine.sends(json_answer(json_body("y, " * 5000))[:-10])
    assert client.data
    engine.closes()
    assert client.aborted
    assert not client.writer.keep_alive
    got = client.got
    assert got is not None
    assert not got.end


async def test_rejection_by_a_child_sidecar_leaves_the_clients_waiting() -> None:
    broadcast = broadcast_of()
    client = Client("a").join(broadcast)
    below = Engine(broadcast, rejection=backpressure.sidecar_rejection)
    body = b'{"error":{"message":"full","retriable":true,"retry_after_ms":70}}'
    below.sends(json_answer(body, b"429 Too Many Requests"))
    ending = below.ending
    assert (ending.failure, ending.answered) == (None, False)
    assert below.response.rejected == 70
    assert below.kept
    assert not client.subscriber.done.done()
    assert broadcast.is_joinable
    Engine(broadcast, rejection=backpressure.sidecar_rejection).sends(STREAM)
    assert client.body == whole_for("a")


async def test_429_of_an_engine_is_forwarded() -> None:
    broadcast = broadcast_of()
    client = Client("a").join(broadcast)
    engine = Engine(broadcast)
    assert engine.response.status == 0
    engine.sends(json_answer(b'{"error":{"retriable":true}}', b"429 No"))
    assert client.record.status == engine.response.status == 429
    assert client.ended_well


async def test_response_is_unseen_while_it_is_under_way_and_nothing_of_it_was_sent() -> None:
    relayed = Relayed(rejection=backpressure.engine_rejection)  # its status is that of no rejection
    assert relayed.response.is_unseen
    relayed.sends(STREAM_HEAD)
    assert relayed.response.is_unseen
    relayed.sends(chunk(EVENTS[0]))
    assert not relayed.response.is_unseen
    assert not Relayed().closes().response.is_unseen, "it has failed"
    waits = EngineResponse(relayed.writer, ConnectionPool("http://127.0.0.1:9", 1.0), events=True)
    assert not waits.is_unseen, "it has no connection yet"


@pytest.mark.parametrize(
    ("reads", "ends"),
    [
        ((), False),
        ((STREAM_HEAD, chunk(EVENTS[0])), False),
        ((STREAM_HEAD.replace(b"200", b"500"), chunk(EVENTS[0] + DONE)), False),
        ((STREAM_HEAD, chunk(EVENTS[0] + DONE)), True),
    ],
)
async def test_stream_ends_early_once_its_last_event_was_sent(
    reads: tuple[bytes, ...], ends: bool
) -> None:
    relayed = Relayed().sends(*reads)
    assert relayed.response.finish_early() is ends
    assert relayed.response.done.done() is relayed.engine.closed is ends
    assert relayed.client.data.endswith(b"\r\n0\r\n\r\n") is ends
    assert not relayed.response.finish_early(), "nor does it end twice"
    shared = Engine(broadcast := broadcast_of())
    client = Client("a").join(broadcast)
    shared.sends(*reads)
    assert shared.response.finish_early() is client.subscriber.done.done() is ends


@pytest.mark.parametrize("more", [0, 1])
async def test_answer_longer_than_any_rejection_is_none(more: int) -> None:
    relayed = Relayed(rejection=lambda head, body: len(body))
    body = b"x" * (backpressure.MAX_REJECTION_BYTES + more)
    relayed.sends(json_answer(body, b"429 No"))
    assert relayed.response.rejected == (None if more else len(body))
    assert relayed.client.data.endswith(body) is bool(more)


async def test_client_that_is_slow_after_the_end_pauses_no_connection_that_was_given_back() -> None:
    relayed = Relayed(stream=False).sends(json_answer(b"{}"))
    relayed.response.pause()
    relayed.response.stop()
    assert relayed.engine.reading
    assert not relayed.engine.closed


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
