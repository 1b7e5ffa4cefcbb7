"""Shared decodes in the queue, and in one of several pools."""

from __future__ import annotations

import asyncio

from tests.integration.client import CHAT
from tests.integration.running import Running, Start, all_ready, eventually, pools, total
from tests.integration.scripted_answers import (
    AnswerScript,
    full,
    nth_answer,
    start_request,
    together,
)
from tests.integration.scripted_engine import Engine, ScriptedEngine

BULK, INTERACTIVE = ("X-Orch-Class", "bulk"), ("X-Orch-Class", "interactive")


async def test_queued_identical_requests_wait_together_for_one_slot(
    engine: ScriptedEngine, sidecar: Running, script: AnswerScript
) -> None:
    async with full(sidecar, script):
        clients = await together(sidecar, (), (), ())
        assert sidecar.queued == 1
        await asyncio.sleep(0.02)
    answer = await nth_answer(script, 2)
    answer.send_all("one ")
    for client in clients:
        response = await client.response()
        assert response.body == answer.body_for(response)
        assert response.header("x-orch-queue-position") == "0"
        queue = float((response.header("server-timing") or "").split(",")[0].split("=")[1])
        assert queue > 10
    metrics = await sidecar.metrics()
    labels = 'class="interactive",measurement_type="batched_online",pool="cloud"'
    assert metrics[f"orch_admission_wait_seconds_count{{{labels}}}"] == 2
    assert metrics[f"orch_time_to_first_byte_seconds_count{{{labels}}}"] == 4
    assert total(metrics, "orch_coalesced_total", pool="cloud") == 2
    assert total(metrics, "orch_admissions_total", outcome="admitted", pool="cloud") == 2
    assert total(metrics, "orch_requests_total", outcome="ok", route=CHAT, status=200) == 4


async def test_better_class_does_not_wait_in_the_queue_of_the_worse(
    engine: ScriptedEngine, sidecar: Running, script: AnswerScript
) -> None:
    async with full(sidecar, script):
        bulk = (await together(sidecar, [BULK]))[0]
        better = await start_request(sidecar, INTERACTIVE)
        await eventually(lambda: sidecar.queued == 2)
        # A request that comes then has the better one, whatever its class is.
        clients = [better, *await together(sidecar, [INTERACTIVE], [BULK])]
        assert sidecar.queued == 2
    for number in (2, 3):
        (await nth_answer(script, number)).send_all("one ")
    first, second = script.answers[1:]
    assert first.answer.request.header("x-vllm-priority") == "0"
    for client in clients:
        response = await client.response()
        assert response.body == first.body_for(response)
    assert (response := await bulk.response()).body == second.body_for(response)


async def test_limits_of_a_wait_are_of_one_request(
    engine: ScriptedEngine, sidecar: Running, script: AnswerScript
) -> None:
    limit = ("X-Orch-Deadline-Ms", "60000")
    async with full(sidecar, script):
        [first] = await together(sidecar, ())
        limited = await start_request(sidecar, limit)
        await eventually(lambda: sidecar.queued == 2)
        refused = await (await start_request(sidecar, ("X-Orch-Do-Not-Queue", ""))).response()
        assert refused.error["code"] == "ADMISSION_NO_QUEUE"
    await nth_answer(script, 3)
    # Once nobody waits, all may share.
    [late] = await together(sidecar, [("X-Orch-Do-Not-Queue", ""), limit])
    for answer in script.answers[1:]:
        answer.send_all("one ")
    for client in (first, limited, late):
        assert (await client.response()).status == 200
    assert len(script.answers) == 3


async def test_later_client_outlasts_the_one_it_joined(
    start: Start, engine: ScriptedEngine, script: AnswerScript
) -> None:
    running = await start(queue_timeout_s=2.0)
    async with full(running, script):
        [first] = await together(running, ())
        await asyncio.sleep(0.25)
        [second] = await together(running, ())
        refused = await first.response()
        assert refused.error["code"] == "ADMISSION_TIMEOUT"
        await eventually(lambda: running.queued == 1)
    answer = await nth_answer(script, 2)
    answer.send_all("one ")
    response = await second.response()
    assert response.body == answer.body_for(response)


# Several pools.


async def test_pool_that_shares_nothing_gets_nothing_shared(
    start: Start, engine: ScriptedEngine, another: Engine, script: AnswerScript
) -> None:
    offline = await another(profile="offline")
    offline.answer = script
    running = await all_ready(await start(**pools(a=engine, offline=offline)))
    pinned = ("X-Orch-Pool", "offline")
    clients = [await start_request(running, pinned) for _ in range(2)]
    await nth_answer(script, 2)
    assert len(offline.generating) == 2
    for answer in script.answers:
        answer.send_all("one ")
    for client in clients:
        assert (await client.response()).status == 200
    # The engine that shares is lost before it sends anything: each goes on by itself.
    clients = await together(
        running, [("X-Orch-Pool", "a; prefer")], [("X-Orch-Pool", "a; prefer")]
    )
    lost = await nth_answer(script, 3)
    assert len(engine.generating) == 1
    lost.answer.reset()
    lost.finished.set()
    await nth_answer(script, 5)
    assert len(offline.generating) == 4
    for answer in script.answers[3:]:
        answer.send_all("one ")
    for client in clients:
        response = await client.response()
        assert (response.status, response.header("x-measurement-type")) == (200, "offline")
