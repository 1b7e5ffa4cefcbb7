"""Shared decodes when clients leave, stall or are refused, and when the engine fails."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from orch_sidecar.coalescing.shared_generation import BUFFER_BYTES
from tests.integration.client import CHAT, Response
from tests.integration.running import Running, Start, eventually, total
from tests.integration.scripted_answers import (
    AnswerScript,
    ScriptedAnswer,
    full,
    nth_answer,
    sharing,
    start_request,
    together,
)
from tests.integration.scripted_engine import ScriptedEngine

WORDS = ("one ", "two ", "three")


async def test_when_the_first_leaves_the_queue_the_others_keep_its_place(
    engine: ScriptedEngine, sidecar: Running, script: AnswerScript
) -> None:
    async with full(sidecar, script):
        first, second = await together(sidecar, (), ())
        behind = await start_request(sidecar, seed=1)
        await eventually(lambda: sidecar.queued == 2)
        await first.close()
        await eventually(lambda: sharing(sidecar) == 2)
        assert sidecar.queued == 2
    answer = await nth_answer(script, 2)
    answer.send_all(*WORDS)
    assert "seed" not in answer.answer.request.json()
    response = await second.response()
    assert response.body == answer.body_for(response)
    (await nth_answer(script, 3)).send_all("one ")
    assert (await behind.response()).status == 200


@pytest.mark.parametrize("sent", [None, 0, 2])
async def test_when_all_leave_the_generation_is_aborted_and_the_slot_comes_back(
    engine: ScriptedEngine, sidecar: Running, script: AnswerScript, sent: int | None
) -> None:
    clients = await together(sidecar, (), (), ())
    answer = await nth_answer(script)
    if sent is not None:
        answer.begin()
        answer.send(*WORDS[:sent])
    if sent:
        for client in clients:
            await client.seen(WORDS[sent - 1].encode())
    for client in clients[:-1]:
        await client.close()
    await eventually(lambda: sharing(sidecar) == 1)
    assert not answer.disconnected
    await clients[-1].close()
    await eventually(lambda: answer.disconnected)
    await sidecar.idle()
    assert engine.present == 0
    # Nothing of it is left that somebody could join.
    [another] = await together(sidecar, ())
    (await nth_answer(script, 2)).send_all("one ")
    assert (await another.response()).status == 200


async def test_when_all_leave_the_queue_it_is_empty(
    engine: ScriptedEngine, sidecar: Running, script: AnswerScript
) -> None:
    async with full(sidecar, script):
        for client in await together(sidecar, (), ()):
            await client.close()
        await eventually(lambda: sidecar.queued == 0)
    await sidecar.idle()
    assert len(engine.generating) == 1
    metrics = await sidecar.metrics()
    gone = {"class": "interactive", "outcome": "cancelled", "pool": "cloud"}
    assert total(metrics, "orch_admissions_total", **gone) == 1
    assert total(metrics, "orch_requests_total", outcome="cancelled", route=CHAT, status=0) == 2


async def test_client_that_leaves_at_once_leaves_nothing_behind(
    engine: ScriptedEngine, sidecar: Running, script: AnswerScript
) -> None:
    for _ in range(20):
        client = await start_request(sidecar)
        client.reset()
    await sidecar.idle()
    await eventually(lambda: not sidecar.sidecar.frontend.active)
    await eventually(lambda: not sidecar.sidecar.coalesce._running)


def got_all_of_it(answer: ScriptedAnswer, response: Response) -> None:
    assert response.body == answer.body_for(response)


def got_the_error_of_a_stall(answer: ScriptedAnswer, response: Response) -> None:
    *_, error, done, rest = response.body.split(b"\n\n")
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "client_stalled"
    assert (done, rest) == (b"data: [DONE]", b"")


@pytest.mark.parametrize(
    ("retained_bytes", "words", "slow_one", "outcomes"),
    [
        (BUFFER_BYTES, 30, got_all_of_it, {"ok": 2}),
        (500_000, 120, got_the_error_of_a_stall, {"ok": 1, "client_stalled": 1}),
    ],
)
async def test_slow_client_delays_no_fast_one_and_gets_what_is_retained_or_an_error(
    engine: ScriptedEngine,
    start: Start,
    script: AnswerScript,
    monkeypatch: pytest.MonkeyPatch,
    retained_bytes: int,
    words: int,
    slow_one: Callable[[ScriptedAnswer, Response], None],
    outcomes: dict[str, int],
) -> None:
    monkeypatch.setattr("orch_sidecar.coalescing.shared_generation.BUFFER_BYTES", retained_bytes)
    running = await start()
    [fast] = await together(running, ())
    slow = await running.client(receive_buffer=4096)
    slow.start(temperature=0)
    await eventually(lambda: sharing(running) == 2)
    answer = await nth_answer(script)
    answer.begin()
    for number in range(words):
        answer.send("x" * 50_000 + f" {number}")
        await fast.seen(f' {number}"'.encode())
    answer.end()
    got_all_of_it(answer, await fast.response())
    await eventually(lambda: not running.ledger.leased)  # the slot is free, however slow it is
    slow_one(answer, await slow.response())
    await running.idle()
    metrics = await running.metrics()
    for outcome, requests in outcomes.items():
        labels = {"outcome": outcome, "route": CHAT, "status": 200}
        assert total(metrics, "orch_requests_total", **labels) == requests
