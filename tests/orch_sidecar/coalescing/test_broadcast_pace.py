"""Slow clients of a shared response do not delay fast ones, and retained bytes are bounded."""

from __future__ import annotations

from orch_sidecar.api.refusal import Reason
from tests.orch_sidecar.broadcasting import (
    STREAM_HEAD,
    Client,
    Engine,
    broadcast_of,
    chunk,
    error_in,
    event,
)

LARGE = event("x" * 1000)
BOUND = 10 * (len(LARGE) + 400)


def sends(engine: Engine, count: int) -> None:
    """Makes the engine produce that many large events."""
    for _ in range(count):
        engine.sends(chunk(LARGE))


def expected(name: str, count: int) -> bytes:
    return event("x" * 1000, name) * count


async def test_response_cannot_be_joined_once_bytes_were_dropped() -> None:
    broadcast = broadcast_of(BOUND)
    client = Client("a").join(broadcast)
    engine = Engine(broadcast)
    engine.sends(STREAM_HEAD)
    sends(engine, 10)
    assert broadcast.is_joinable
    sends(engine, 2)
    assert not broadcast.is_joinable
    assert broadcast.log.size <= BOUND
    sends(engine, 100)
    engine.sends(b"0\r\n\r\n")
    assert client.body == expected("a", 112)


async def test_client_beyond_the_limit_gets_an_error_in_its_stream() -> None:
    broadcast = broadcast_of(BOUND)
    fast, slow = Client("fast").join(broadcast), Client("slow", room=100).join(broadcast)
    engine = Engine(broadcast)
    engine.sends(STREAM_HEAD)
    sends(engine, 30)
    assert fast.body == expected("fast", 30)
    ending = slow.ending
    assert ending.answered
    assert ending.failure is not None
    assert ending.failure.reason is Reason.CLIENT_STALLED
    got = slow.got
    assert got is not None
    assert got.end
    assert got.body.startswith(expected("slow", 1) + b'data: {"error"')
    assert error_in(got.body)["code"] == "client_stalled"
    assert engine.transport.reading
    assert not fast.subscriber.done.done()


async def test_single_subscriber_pauses_the_engine() -> None:
    broadcast = broadcast_of(BOUND)
    client = Client("a", room=100).join(broadcast)
    engine = Engine(broadcast)
    engine.sends(STREAM_HEAD)
    sends(engine, 11)
    assert engine.transport.reading
    sends(engine, 3)
    assert not engine.transport.reading
    client.read()
    assert engine.transport.reading
    assert client.body == expected("a", 14)


async def test_engine_is_paused_if_no_subscriber_is_delayed() -> None:
    broadcast = broadcast_of(BOUND)
    clients = [Client(name, room=100).join(broadcast) for name in "ab"]
    engine = Engine(broadcast)
    engine.sends(STREAM_HEAD)
    sends(engine, 14)
    assert not engine.transport.reading
    assert not any(client.subscriber.done.done() for client in clients)
    clients[0].read()  # now there is one that could go on
    assert engine.transport.reading
    assert clients[0].body == expected("a", 14)
    assert clients[1].subscriber.done.done()


async def test_engine_resumes_when_the_slow_subscriber_leaves() -> None:
    broadcast = broadcast_of(BOUND)
    ahead = Client("ahead", room=3000).join(broadcast)
    behind = Client("behind", room=100).join(broadcast)
    engine = Engine(broadcast)
    engine.sends(STREAM_HEAD)
    sends(engine, 13)
    assert not engine.transport.reading
    behind.leave()
    assert engine.transport.reading
    ahead.read()
    assert ahead.body == expected("ahead", 13)


async def test_paused_connection_is_readable_when_reused() -> None:
    broadcast = broadcast_of(BOUND)
    Client("a", room=100).join(broadcast)
    engine = Engine(broadcast)
    engine.sends(STREAM_HEAD)
    sends(engine, 14)
    engine.sends(b"0\r\n\r\n")  # was read already when the engine was paused
    assert engine.kept
    assert engine.transport.reading


async def test_slow_clients_read_retained_bytes_after_the_end() -> None:
    broadcast = broadcast_of(BOUND)
    slow = [Client(name, room=100).join(broadcast) for name in "ab"]
    engine = Engine(broadcast)
    engine.sends(STREAM_HEAD)
    sends(engine, 9)
    engine.sends(b"0\r\n\r\n")
    assert engine.response.done.done(), "the engine is free"
    for client in slow:
        assert not client.subscriber.done.done()
        while not client.subscriber.done.done():
            client.read(room=100)
        assert client.body == expected(client.name, 9)
        assert client.ended_well


async def test_retained_bytes_are_sent_in_parts() -> None:
    broadcast = broadcast_of(1 << 20)
    slow = Client("slow", room=100).join(broadcast)
    engine = Engine(broadcast)
    engine.sends(STREAM_HEAD)
    sends(engine, 500)
    before = len(slow.data)
    slow.read(room=100)
    assert 60_000 < len(slow.data) - before < 80_000


async def test_client_that_reads_again_gets_no_more_than_its_transport_takes() -> None:
    """Its bytes are written at the end of the turn while other requests are served."""
    broadcast = broadcast_of(1 << 20)
    client = Client("slow", room=100).join(broadcast)
    turn = client.writer.client.turn
    engine = Engine(broadcast)
    engine.sends(STREAM_HEAD)
    turn.active = 2
    sends(engine, 1)
    turn.flush()
    sends(engine, 300)
    begun = len(client.data)
    client.read(room=100)
    turn.flush()
    assert len(client.data) - begun < 70_000
    assert client.subscriber.is_behind
