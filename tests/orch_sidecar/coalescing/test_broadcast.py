"""One answer, several clients: who joins, who leaves, and what they get."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from orch_sidecar.api.refusal import Reason, Refusal
from tests.fuzz import examples
from tests.orch_sidecar.answers import PLACES, cut
from tests.orch_sidecar.shared import (
    STREAM,
    STREAM_HEAD,
    Abandoned,
    Client,
    Engine,
    chunk,
    event,
    fanout_of,
    json_answer,
    whole_for,
)
from tests.orch_sidecar.spoken import SPOKEN, Spoken


async def test_answer_that_has_ended_cannot_be_joined() -> None:
    fanout = fanout_of()
    Client("a").join(fanout)
    engine = Engine(fanout)
    assert fanout.joinable
    engine.says(STREAM[:-5])
    assert fanout.joinable
    engine.says(STREAM[-5:])
    assert not fanout.joinable


@given(st.sampled_from(SPOKEN), PLACES, PLACES)
async def test_shared_answer_is_read_however_it_is_chunked_and_cut(
    spoken: Spoken, chunks: list[int], reads: list[int]
) -> None:
    fanout = fanout_of(stream=spoken.stream)
    client = Client("a").join(fanout)
    data = json_answer(spoken.body)
    if spoken.stream:
        data = STREAM_HEAD + b"".join(map(chunk, cut(spoken.body, chunks))) + b"0\r\n\r\n"
    Engine(fanout).says(*cut(data, reads))
    assert client.body == spoken.body
    assert (fanout.answer.counts, fanout.answer.failed) == (spoken.counts, spoken.failed)


async def test_times_of_a_client_that_joins_late_are_its_own() -> None:
    fanout = fanout_of()
    early = Client("early").join(fanout)
    fanout.admit(early.record.arrived + 5_000_000)
    late = Client("late").join(fanout)
    assert early.record.admitted == early.record.arrived + 5_000_000
    assert late.record.admitted is not None
    assert late.record.arrived <= late.record.admitted < late.record.arrived + 10**9


async def test_refused_admission_is_for_each_handler_to_answer() -> None:
    fanout = fanout_of()
    clients = [Client(name).join(fanout) for name in "ab"]
    refusal = Refusal(Reason.QUEUE_TIMEOUT, "too long")
    fanout.fail(refusal)
    for client in clients:
        ending = client.follower.done.result()
        assert (ending.failure, ending.answered) == (refusal, False)
        assert client.data == b""
        assert client.record.outcome is Reason.QUEUE_TIMEOUT
    assert not fanout.joinable


async def test_leader_leaves_and_the_others_go_on() -> None:
    abandoned = Abandoned()
    fanout = fanout_of(abandoned=abandoned)
    leader, other = Client("leader").join(fanout), Client("other").join(fanout)
    engine = Engine(fanout)
    engine.says(STREAM[: len(STREAM) // 2])
    leader.leave()
    before = leader.data
    engine.says(STREAM[len(STREAM) // 2 :])
    assert other.body == whole_for("other")
    assert leader.data == before
    assert not leader.follower.done.done(), "its handler is gone: nobody is told"
    assert abandoned.times == 0


async def test_decode_is_given_up_when_the_last_client_leaves() -> None:
    abandoned = Abandoned()
    fanout = fanout_of(abandoned=abandoned)
    clients = [Client(name).join(fanout) for name in "abc"]
    engine = Engine(fanout)
    engine.says(STREAM[:-5])
    for client in clients:
        assert abandoned.times == 0
        assert not engine.transport.closed
        client.leave()
    assert abandoned.times == 1
    assert engine.transport.closed
    assert not fanout.joinable
    clients[0].follower.leave()
    assert abandoned.times == 1


async def test_all_may_leave_while_it_is_queued() -> None:
    abandoned = Abandoned()
    fanout = fanout_of(abandoned=abandoned)
    Client("a").join(fanout).leave()
    assert abandoned.times == 1


async def test_client_that_has_been_answered_gives_nothing_up() -> None:
    abandoned = Abandoned()
    fanout = fanout_of(abandoned=abandoned)
    client = Client("a").join(fanout)
    Engine(fanout).says(STREAM)
    client.leave()
    assert abandoned.times == 0


async def test_client_whose_connection_is_closing_gets_no_more_bytes() -> None:
    abandoned = Abandoned()
    fanout = fanout_of(abandoned=abandoned)
    gone, stays = Client("gone").join(fanout), Client("stays").join(fanout)
    engine = Engine(fanout)
    gone.closed = True
    engine.says(STREAM[:-5])
    assert gone.data == b""
    stays.closed = True
    engine.says(STREAM[-5:])
    assert stays.data != b""
    assert abandoned.times == 0, "it had ended"


STEP = st.one_of(
    st.tuples(st.just("produce"), st.integers(1, 6)),
    st.tuples(st.just("join"), st.sampled_from((None, 0, 400, 3000))),
    st.tuples(st.just("read"), st.integers(0, 7)),
    st.tuples(st.just("leave"), st.integers(0, 7)),
    st.tuples(st.just("split"), st.integers(1, 200)),
)


@settings(max_examples=examples(300))
@given(st.lists(STEP, max_size=60), st.booleans())
async def test_whatever_the_order_answers_are_whole_and_what_is_retained_is_bounded(
    steps: list[tuple[str, int | None]], breaks: bool
) -> None:
    bound, abandoned = 3000, Abandoned()
    fanout = fanout_of(bound, abandoned)
    clients = [Client("c0").join(fanout)]
    engine = Engine(fanout)
    produced = 0
    rest = STREAM_HEAD
    for what, number in steps:
        if abandoned.times:
            break
        if what == "produce" and engine.transport.reading:
            assert number is not None
            for _ in range(number):
                produced += 1
                rest += chunk(event(f"number {produced}"))
            engine.says(rest)
            rest = b""
        elif what == "split":
            assert number is not None
            engine.says(rest[:number])
            rest = rest[number:]
        elif what == "join" and fanout.joinable:
            clients.append(Client(f"c{len(clients)}", room=number).join(fanout))
        elif what == "read":
            assert number is not None
            client = clients[number % len(clients)]
            if not client.closed:
                client.read(room=400)
        elif what == "leave":
            assert number is not None
            clients[number % len(clients)].leave()
        # The largest piece may stand over: it is cut from nothing.
        assert fanout.log.size <= bound + 6 * 700
        for client in clients:
            whole = b"".join(event(f"number {i + 1}", client.name) for i in range(produced))
            body = client.body
            if not client.follower.done.done():
                assert whole.startswith(body)
                assert body == b"" or body.endswith(b"\n\n")
            if not client.follower.paused and not client.closed and rest == b"":
                assert client.follower.done.done() or body == whole
    if abandoned.times:
        assert all(client.closed or client.follower.done.done() for client in clients)
        return
    engine.says(rest)
    if breaks:
        engine.closes()
        failure = engine.decode.done.result().failure
        assert failure is not None
        fanout.fail(failure)
    else:
        engine.says(b"0\r\n\r\n")
    for client in clients:
        if client.closed:
            continue
        while not client.follower.done.done():
            client.read(room=400)
        ending = client.follower.done.result()
        whole = b"".join(event(f"number {i + 1}", client.name) for i in range(produced))
        if ending.failure is None:
            assert client.body == whole
        elif ending.failure.reason is Reason.ENGINE_FAILED and ending.answered:
            assert client.body.startswith(whole + b'data: {"error"')
        got = client.got
        assert ending.answered or got is None
        assert got is None or got.end
    assert abandoned.times == 0


async def test_withdrawn_answer_waits_again_with_all_its_clients() -> None:
    fanout = fanout_of()
    client = Client("a").join(fanout)
    fanout.admit(17)
    assert (fanout.admitted, client.record.admitted) == (True, 17)
    fanout.withdraw()
    assert (fanout.admitted, client.record.admitted) == (False, None)
    late = Client("b").join(fanout)
    assert late.record.admitted is None
    fanout.admit(18)
    assert client.record.admitted == late.record.admitted == 18
