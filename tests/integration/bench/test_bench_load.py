"""Requests of a measurement on real sockets: how they are sent, and what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise, repeat
from typing import Any

import pytest

from orch_sidecar.tools.bench.load import driver
from orch_sidecar.tools.bench.load.call import Call, Fate, Request
from orch_sidecar.tools.bench.load.driver import LoadGenerator
from orch_sidecar.tools.bench.load.endpoint import Endpoint
from orch_sidecar.wire.engine_connection import ConnectionPool, EngineConnection
from tests.integration.bench.decoding import Decoding
from tests.integration.bench.measuring import known
from tests.integration.running import eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.scripts import endless
from tests.integration.wire import Answer
from tests.patience import HANG_S

pytestmark = pytest.mark.usefixtures("decoding")

BODY = b'{"model":"tiny","prompt":[1,2,3],"max_tokens":4,"stream":true}'


def requests_to(engine: ScriptedEngine, **tokens: Any) -> Iterator[Request]:
    message = Endpoint.of(engine.url).message("/v1/completions", BODY, {})
    return repeat(Request(message, **tokens))


def made(engine: ScriptedEngine) -> LoadGenerator:
    return LoadGenerator(Endpoint.of(engine.url))


async def one(engine: ScriptedEngine, **tokens: Any) -> Call:
    made_ = made(engine)
    await made_.run(made_.closed_loop(requests_to(engine, **tokens), 1, 1))
    [call] = made_.calls
    return call


async def test_one_client_sends_its_next_request_when_one_has_ended(engine: ScriptedEngine) -> None:
    found = made(engine)
    await found.run(found.closed_loop(requests_to(engine), 1, 10))
    assert [call.fate for call in found.calls] == [Fate.ANSWERED] * 10
    assert all(call.reached for call in found.calls)
    for before, call in pairwise(found.calls):
        assert known(call.sent_s) >= known(before.ended_s)
        assert known(call.late_s) >= 0
    assert len({request.connection for request in engine.generating}) == 1
    assert engine.peak == 1
    assert found.cpu_share > 0


async def test_clients_of_a_closed_loop_are_under_way_together(engine: ScriptedEngine) -> None:
    ended: list[int] = []
    found = LoadGenerator(Endpoint.of(engine.url), lambda: ended.append(found.ended))
    await found.run(found.closed_loop(requests_to(engine), 3, 20))
    assert len(found.calls) == 20
    assert engine.peak == 3
    assert ended == [*range(1, 21)]


async def test_closed_loop_runs_for_the_requested_time(engine: ScriptedEngine) -> None:
    found = made(engine)
    await found.run(found.closed_loop(requests_to(engine), 2, 0, 0.3))
    assert found.now() >= 0.3
    assert {call.fate for call in found.calls} == {Fate.ANSWERED}
    assert len(found.calls) >= 2


async def test_scheduled_requests_are_never_early_and_never_wait_for_others(
    engine: ScriptedEngine,
) -> None:
    engine.slots = 100
    Decoding(engine, step_s=0.02)
    due_s = [0.01 * number for number in range(1, 21)]
    found = made(engine)
    await found.run(found.open_loop(requests_to(engine), due_s))
    assert [call.due_s for call in found.calls] == due_s
    for call in found.calls:
        assert call.fate is Fate.ANSWERED
        assert known(call.late_s) >= 0
        assert known(call.served).latency_s >= 0.055  # three whole steps
    assert engine.peak >= 4


async def test_all_are_sent_at_once(engine: ScriptedEngine) -> None:
    engine.slots = 200
    decode, all_came = Decoding(engine), asyncio.Event()

    async def answered_together(answer: Answer) -> None:
        if len(engine.generating) == 200:
            all_came.set()
        await all_came.wait()
        await decode(answer)

    engine.answer = answered_together
    found = made(engine)
    await found.run(found.open_loop(requests_to(engine), [0.0] * 200))
    assert {call.fate for call in found.calls} == {Fate.ANSWERED}
    assert len({call.due_s for call in found.calls}) == 1
    assert len({request.connection for request in engine.generating}) == 200


async def test_no_more_connections_are_made_at_once_than_a_server_takes(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "CONNECTING_AT_ONCE", 2)
    engine.slots = 20
    Decoding(engine)
    connecting: list[int] = [0]
    most: list[int] = []
    connected = ConnectionPool.acquire

    async def counted(self: ConnectionPool) -> EngineConnection:
        connecting[0] += 1
        most.append(connecting[0])
        try:
            return await connected(self)
        finally:
            connecting[0] -= 1

    monkeypatch.setattr(ConnectionPool, "acquire", counted)
    found = made(engine)
    await found.run(found.open_loop(requests_to(engine), [0.0] * 20))
    assert {call.fate for call in found.calls} == {Fate.ANSWERED}
    assert max(most) == 2


async def test_new_connection_is_part_of_the_answers_time(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected = ConnectionPool.acquire

    async def slowly(self: ConnectionPool) -> EngineConnection:
        await asyncio.sleep(0.2)
        return await connected(self)

    monkeypatch.setattr(ConnectionPool, "acquire", slowly)
    call = await one(engine)
    ttft_s = known(known(call.served).ttft_s)
    assert ttft_s >= 0.199
    assert known(call.late_s) < ttft_s


@pytest.mark.parametrize("kind", ["closed", "open"])
async def test_stop_cuts_what_is_under_way_and_sends_nothing_more(
    engine: ScriptedEngine, kind: str
) -> None:
    engine.answer = endless
    found = made(engine)
    work = {
        "closed": lambda: found.closed_loop(requests_to(engine), 2, 100),
        "open": lambda: found.open_loop(requests_to(engine), [0.01, 0.02, 60.0]),
    }[kind]()
    running = asyncio.create_task(found.run(work))
    await eventually(lambda: [call.status for call in found.calls] == [200, 200])
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, HANG_S)
    assert [call.fate for call in found.calls] == [Fate.CUT] * 2
    assert all(call.ended_s is not None for call in found.calls)
    await eventually(lambda: not engine.present)


async def test_rejected_client_pauses_before_it_retries(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(answer: Answer) -> None:
        answer.json({"error": {"code": "queue_full"}}, 429)

    monkeypatch.setattr(driver, "RETRY_DELAY_S", 0.1)
    engine.answer = full
    found = made(engine)
    await found.run(found.closed_loop(requests_to(engine), 1, 3))
    assert [(call.fate, call.why) for call in found.calls] == [(Fate.REFUSED, "queue_full")] * 3
    assert not any(call.reached for call in found.calls)
    sent_s = [call.sent_s for call in found.calls if call.sent_s is not None]
    assert [b - a >= 0.098 for a, b in pairwise(sent_s)] == [True, True]


async def test_refused_connection_is_a_failure(engine: ScriptedEngine) -> None:
    await engine.stop()
    call = await one(engine)
    assert call.fate is Fate.FAILED
    assert call.why.startswith("connection failed: ")
    assert not call.reached
    assert call.late_s is None


@pytest.mark.parametrize(
    ("asked", "length_as_requested"),
    [
        ({}, True),
        ({"input_tokens": 3, "output_tokens": 4}, True),
        ({"input_tokens": 4}, False),
        ({"output_tokens": 5}, False),
    ],
)
async def test_lengths_are_compared_with_the_request(
    engine: ScriptedEngine, asked: dict[str, int], length_as_requested: bool
) -> None:
    call = await one(engine, **asked)
    assert (call.input_tokens, call.output_tokens) == (3, 4)
    assert call.length_as_requested is length_as_requested


async def test_known_prompt_length_replaces_missing_usage(engine: ScriptedEngine) -> None:
    Decoding(engine).usage = False
    known, unknown = await one(engine, input_tokens=9), await one(engine)
    assert (known.input_tokens, known.output_tokens, known.counted_by_events) == (9, 4, True)
    assert unknown.input_tokens is None
