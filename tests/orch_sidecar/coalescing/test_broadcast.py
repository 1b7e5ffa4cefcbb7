"""One response for several subscribers: joining, leaving, and the bytes they get.

Slow clients do not delay fast ones, and retained bytes are bounded.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.coalescing.broadcast import Broadcast
from orch_sidecar.observability.record import Outcome
from tests.fuzz import examples
from tests.orch_sidecar.answers import PLACES, cut
from tests.orch_sidecar.broadcasting import (
    DONE,
    EVENTS,
    STREAM,
    STREAM_HEAD,
    Client,
    Engine,
    broadcast_of,
    chunk,
    error_in,
    event,
    json_answer,
    whole_for,
)
from tests.orch_sidecar.spoken import SPOKEN, Spoken


async def test_ended_response_cannot_be_joined() -> None:
    broadcast = broadcast_of()
    Client("a").join(broadcast)
    engine = Engine(broadcast)
    assert broadcast.is_joinable
    engine.sends(STREAM[:-5])
    assert broadcast.is_joinable
    engine.sends(STREAM[-5:])
    assert not broadcast.is_joinable


@given(st.sampled_from(SPOKEN), PLACES, PLACES)
async def test_shared_response_is_parsed_however_it_is_chunked_and_cut(
    spoken: Spoken, chunks: list[int], reads: list[int]
) -> None:
    broadcast = broadcast_of()
    client = Client("a").join(broadcast)
    data = json_answer(spoken.body)
    if spoken.stream:
        data = STREAM_HEAD + b"".join(map(chunk, cut(spoken.body, chunks))) + b"0\r\n\r\n"
    engine = Engine(broadcast)
    engine.sends(*cut(data, reads))
    assert client.body == spoken.body
    answer = engine.response.answer
    assert (answer.counts, answer.failed) == (spoken.counts, spoken.failed)


async def test_late_subscriber_has_its_own_times() -> None:
    broadcast = broadcast_of()
    early = Client("early").join(broadcast)
    broadcast.record.admitted = early.record.arrived + 5_000_000
    Engine(broadcast)
    late = Client("late").join(broadcast)
    assert early.record.admitted == early.record.arrived + 5_000_000
    assert late.record.admitted is not None
    assert late.record.arrived <= late.record.admitted < late.record.arrived + 10**9


async def test_client_that_joins_while_the_engine_is_connected_to_has_not_waited() -> None:
    broadcast = broadcast_of()
    early = Client("early").join(broadcast)
    broadcast.record.admitted = early.record.arrived + 1
    assert broadcast.is_admitted
    late = Client("late").join(broadcast)
    Engine(broadcast)
    assert early.record.admitted == broadcast.record.admitted
    assert late.record.admitted is not None
    assert late.record.admitted >= late.record.arrived


async def test_refused_admission_is_answered_by_each_handler() -> None:
    broadcast = broadcast_of()
    clients = [Client(name).join(broadcast) for name in "ab"]
    refusal = Refusal(Reason.QUEUE_TIMEOUT, "too long")
    broadcast.cut_short(refusal)
    for client in clients:
        assert client.ending == (refusal, False)
        assert client.data == b""
    assert not broadcast.is_joinable


async def test_generation_is_cancelled_when_the_last_subscriber_leaves() -> None:
    broadcast = broadcast_of()
    clients = [Client(name).join(broadcast) for name in "abc"]
    engine = Engine(broadcast)
    engine.sends(STREAM[:-5])
    for client in clients:
        assert not broadcast.abandoned
        assert not engine.transport.closed
        client.leave()
    assert broadcast.abandoned
    assert engine.transport.closed
    assert not broadcast.is_joinable
    clients[0].subscriber.stop()
    assert broadcast.abandoned


async def test_closing_connection_gets_no_more_bytes() -> None:
    broadcast = broadcast_of()
    gone, stays = Client("gone").join(broadcast), Client("stays").join(broadcast)
    engine = Engine(broadcast)
    gone.closed = True
    engine.sends(STREAM[:-5])
    assert gone.data == b""
    stays.closed = True
    engine.sends(STREAM[-5:])
    assert stays.data != b""
    assert not broadcast.abandoned, "it had ended"


STEP = st.one_of(
    st.tuples(st.just("produce"), st.integers(1, 6)),
    st.tuples(st.just("join"), st.sampled_from((None, 0, 400, 3000))),
    st.tuples(st.just("read"), st.integers(0, 7)),
    st.tuples(st.just("leave"), st.integers(0, 7)),
    st.tuples(st.just("split"), st.integers(1, 200)),
)


@settings(max_examples=examples(300))
@given(st.lists(STEP, max_size=60), st.booleans())
async def test_responses_are_complete_and_memory_is_bounded_in_any_order(
    steps: list[tuple[str, int | None]], breaks: bool
) -> None:
    bound = 3000
    broadcast = broadcast_of(bound)
    clients = [Client("c0").join(broadcast)]
    engine = Engine(broadcast)
    produced = 0
    rest = STREAM_HEAD
    for what, number in steps:
        if broadcast.abandoned:
            break
        if what == "produce" and engine.transport.reading:
            assert number is not None
            for _ in range(number):
                produced += 1
                rest += chunk(event(f"number {produced}"))
            engine.sends(rest)
            rest = b""
        elif what == "split":
            assert number is not None
            engine.sends(rest[:number])
            rest = rest[number:]
        elif what == "join" and broadcast.is_joinable:
            clients.append(Client(f"c{len(clients)}", room=number).join(broadcast))
        elif what == "read":
            assert number is not None
            client = clients[number % len(clients)]
            if not client.closed:
                client.read(room=400)
        elif what == "leave":
            assert number is not None
            clients[number % len(clients)].leave()
        # The largest piece may stand over: it is cut from nothing.
        assert broadcast.log.size <= bound + 6 * 700
        for client in clients:
            whole = b"".join(event(f"number {i + 1}", client.name) for i in range(produced))
            body = client.body
            if not client.subscriber.done.done():
                assert whole.startswith(body)
                assert body == b"" or body.endswith(b"\n\n")
            if not client.writer.paused and not client.closed and rest == b"":
                assert client.subscriber.done.done() or body == whole
    if broadcast.abandoned:
        assert all(client.closed or client.subscriber.done.done() for client in clients)
        return
    engine.sends(rest)
    if breaks:
        engine.closes()
        failure = engine.ending.failure
        assert failure is not None
        broadcast.cut_short(failure)
    else:
        engine.sends(b"0\r\n\r\n")
    for client in clients:
        if client.closed:
            continue
        while not client.subscriber.done.done():
            client.read(room=400)
        ending = client.ending
        whole = b"".join(event(f"number {i + 1}", client.name) for i in range(produced))
        if ending.failure is None:
            assert client.body == whole
        elif ending.failure.reason is Reason.ENGINE_FAILED and ending.answered:
            assert client.body.startswith(whole + b'data: {"error"')
        got = client.got
        assert ending.answered or got is None
        assert got is None or got.end
    assert not broadcast.abandoned


@pytest.mark.parametrize("http10", [False, True])
async def test_client_that_cancels_after_the_last_event_has_all_of_it(http10: bool) -> None:
    broadcast = broadcast_of()
    first = Client("first").join(broadcast, http10=http10)
    other = Client("other", room=1).join(broadcast)
    engine = Engine(broadcast)
    engine.sends(STREAM.removesuffix(b"0\r\n\r\n"))
    first.subscriber.fail(Refusal(Reason.CANCELLED, "cancelled"))
    assert first.body == whole_for("first")
    assert first.ended_well
    assert broadcast.outcome is Outcome.OK
    assert engine.transport.closed
    assert not other.subscriber.done.done(), "it is behind, and goes on alone"
    other.read()
    assert other.body == whole_for("other")
    assert other.ended_well


async def test_generation_that_is_cancelled_after_its_last_event_is_complete() -> None:
    """The sidecar stops before the engine has ended the body."""
    broadcast = broadcast_of()
    clients = [Client(name).join(broadcast) for name in "ab"]
    Engine(broadcast).sends(STREAM.removesuffix(b"0\r\n\r\n"))
    broadcast.cut_short(Refusal(Reason.DRAINING, "stopping"))
    for client in clients:
        assert client.body == whole_for(client.name)
        assert client.ended_well


async def test_client_that_cancels_before_it_has_the_last_event_gets_the_error() -> None:
    broadcast = broadcast_of()
    slow, other = Client("slow", room=1).join(broadcast), Client("other").join(broadcast)
    Engine(broadcast).sends(STREAM_HEAD, chunk(EVENTS[0]), chunk(DONE))
    slow.subscriber.fail(Refusal(Reason.CANCELLED, "cancelled"))
    assert error_in(slow.body)["code"] == "cancelled"
    assert not other.subscriber.done.done()


async def test_subscribers_wait_for_another_response_after_a_lost_connection() -> None:
    broadcast = broadcast_of()
    client = Client("a").join(broadcast)
    broadcast.record.admitted = 17
    engine = Engine(broadcast)
    assert (broadcast.is_admitted, client.record.admitted) == (True, 17)
    engine.closes(ConnectionResetError())
    assert (broadcast.is_admitted, client.record.admitted) == (False, None)
    late = Client("b").join(broadcast)
    assert late.record.admitted is None
    broadcast.record.admitted = 18
    Engine(broadcast)
    assert client.record.admitted == late.record.admitted == 18


LARGE = event("x" * 1000)
BOUND = 10 * (len(LARGE) + 400)


def streams(broadcast: Broadcast) -> Engine:
    engine = Engine(broadcast)
    engine.sends(STREAM_HEAD)
    return engine


def sends(engine: Engine, count: int) -> None:
    """Makes the engine produce that many large events."""
    for _ in range(count):
        engine.sends(chunk(LARGE))


def expected(name: str, count: int) -> bytes:
    return event("x" * 1000, name) * count


async def test_response_cannot_be_joined_once_bytes_were_dropped() -> None:
    broadcast = broadcast_of(BOUND)
    client = Client("a").join(broadcast)
    engine = streams(broadcast)
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
    engine = streams(broadcast)
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
    engine = streams(broadcast)
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
    engine = streams(broadcast)
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
    engine = streams(broadcast)
    sends(engine, 13)
    assert not engine.transport.reading
    behind.leave()
    assert engine.transport.reading
    ahead.read()
    assert ahead.body == expected("ahead", 13)


async def test_paused_connection_is_readable_when_reused() -> None:
    broadcast = broadcast_of(BOUND)
    Client("a", room=100).join(broadcast)
    engine = streams(broadcast)
    sends(engine, 14)
    engine.sends(b"0\r\n\r\n")  # was read already when the engine was paused
    assert engine.kept
    assert engine.transport.reading


async def test_slow_clients_read_retained_bytes_after_the_end() -> None:
    broadcast = broadcast_of(BOUND)
    slow = [Client(name, room=100).join(broadcast) for name in "ab"]
    engine = streams(broadcast)
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
    engine = streams(broadcast)
    sends(engine, 500)
    before = len(slow.data)
    slow.read(room=100)
    assert 60_000 < len(slow.data) - before < 80_000


async def test_client_that_reads_again_gets_no_more_than_its_transport_takes() -> None:
    """Its bytes are written at the end of the turn while other requests are served."""
    broadcast = broadcast_of(1 << 20)
    client = Client("slow", room=100).join(broadcast)
    turn = client.writer.client.turn
    engine = streams(broadcast)
    turn.active = 2
    sends(engine, 1)
    turn.flush()
    sends(engine, 300)
    begun = len(client.data)
    client.read(room=100)
    turn.flush()
    assert len(client.data) - begun < 70_000
    assert client.subscriber.is_behind
