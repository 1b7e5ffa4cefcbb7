"""Slow clients of a shared answer hold up no fast one, and what is retained is bounded."""

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


def says(engine: Engine, count: int) -> None:
    """The engine produces that many large events."""
    for _ in range(count):
        engine.says(chunk(LARGE))


def expected(name: str, count: int) -> bytes:
    return event("x" * 1000, name) * count


async def test_slow_client_within_the_bound_goes_on_when_it_reads() -> None:
    broadcast = broadcast_of(BOUND)
    fast, slow = Client("fast").join(broadcast), Client("slow", room=100).join(broadcast)
    engine = Engine(broadcast)
    engine.says(STREAM_HEAD)
    says(engine, 8)
    assert fast.body == expected("fast", 8)
    assert slow.body == expected("slow", 1)
    slow.read()
    assert slow.body == expected("slow", 8)
    engine.says(b"0\r\n\r\n")
    assert slow.ended_well


async def test_nobody_joins_once_something_was_dropped() -> None:
    broadcast = broadcast_of(BOUND)
    client = Client("a").join(broadcast)
    engine = Engine(broadcast)
    engine.says(STREAM_HEAD)
    says(engine, 10)
    assert broadcast.joinable
    says(engine, 2)
    assert not broadcast.joinable
    assert broadcast.log.size <= BOUND
    says(engine, 100)
    engine.says(b"0\r\n\r\n")
    assert client.body == expected("a", 112)


async def test_client_beyond_the_bound_is_told_so_in_its_stream() -> None:
    broadcast = broadcast_of(BOUND)
    fast, slow = Client("fast").join(broadcast), Client("slow", room=100).join(broadcast)
    engine = Engine(broadcast)
    engine.says(STREAM_HEAD)
    says(engine, 30)
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


async def test_only_those_are_told_who_are_beyond_the_bound() -> None:
    broadcast = broadcast_of(BOUND)
    Client("fast").join(broadcast)
    slow, slowest = (Client(name, room=r).join(broadcast) for name, r in (("b", 4000), ("c", 10)))
    engine = Engine(broadcast)
    engine.says(STREAM_HEAD)
    says(engine, 12)
    assert not slow.subscriber.done.done()
    assert slowest.subscriber.done.done()


async def test_only_client_holds_up_the_engine_as_without_sharing() -> None:
    broadcast = broadcast_of(BOUND)
    client = Client("a", room=100).join(broadcast)
    engine = Engine(broadcast)
    engine.says(STREAM_HEAD)
    says(engine, 11)
    assert engine.transport.reading
    says(engine, 3)
    assert not engine.transport.reading
    client.read()
    assert engine.transport.reading
    assert client.body == expected("a", 14)


async def test_engine_waits_if_that_holds_up_nobody() -> None:
    broadcast = broadcast_of(BOUND)
    clients = [Client(name, room=100).join(broadcast) for name in "ab"]
    engine = Engine(broadcast)
    engine.says(STREAM_HEAD)
    says(engine, 14)
    assert not engine.transport.reading
    assert not any(client.subscriber.done.done() for client in clients)
    clients[0].read()  # now there is one that could go on
    assert engine.transport.reading
    assert clients[0].body == expected("a", 14)
    assert clients[1].subscriber.done.done()


async def test_engine_goes_on_when_the_one_that_held_it_up_leaves() -> None:
    broadcast = broadcast_of(BOUND)
    ahead = Client("ahead", room=3000).join(broadcast)
    behind = Client("behind", room=100).join(broadcast)
    engine = Engine(broadcast)
    engine.says(STREAM_HEAD)
    says(engine, 13)
    assert not engine.transport.reading
    behind.leave()
    assert engine.transport.reading
    ahead.read()
    assert ahead.body == expected("ahead", 13)


async def test_connection_that_was_held_up_is_kept_readable() -> None:
    broadcast = broadcast_of(BOUND)
    Client("a", room=100).join(broadcast)
    engine = Engine(broadcast)
    engine.says(STREAM_HEAD)
    says(engine, 14)
    engine.says(b"0\r\n\r\n")  # was read already when the engine was held up
    assert engine.kept
    assert engine.transport.reading


async def test_after_the_end_slow_clients_take_what_is_retained_at_their_pace() -> None:
    broadcast = broadcast_of(BOUND)
    slow = [Client(name, room=100).join(broadcast) for name in "ab"]
    engine = Engine(broadcast)
    engine.says(STREAM_HEAD)
    says(engine, 9)
    engine.says(b"0\r\n\r\n")
    assert engine.response.done.done(), "the engine is free"
    for client in slow:
        assert not client.subscriber.done.done()
        while not client.subscriber.done.done():
            client.read(room=100)
        assert client.body == expected(client.name, 9)
        assert client.ended_well


async def test_client_that_is_far_behind_is_not_sent_all_at_once() -> None:
    broadcast = broadcast_of(1 << 20)
    slow = Client("slow", room=100).join(broadcast)
    engine = Engine(broadcast)
    engine.says(STREAM_HEAD)
    says(engine, 500)
    before = len(slow.data)
    slow.read(room=100)
    assert 60_000 < len(slow.data) - before < 80_000
