"""Shared decodes when clients leave, stall or are refused, and when the engine fails."""

from __future__ import annotations

import asyncio

from tests.integration.running import Running, Start, all_ready, eventually
from tests.integration.scripted_answers import (
    AnswerScript,
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


async def test_cancelled_client_leaves_and_the_others_go_on(
    engine: ScriptedEngine, sidecar: Running, script: AnswerScript
) -> None:
    ids = [f"{number:032x}" for number in range(1, 5)]
    async with full(sidecar, script):
        clients = await together(sidecar, *[[("X-Orch-Request-Id", own)] for own in ids[:3]])
        cancelling = await sidecar.client()
        assert (await cancelling.request("POST", f"/v1/requests/{ids[0]}/cancel")).status == 204
        refused = await clients[0].response()
        assert (refused.status, refused.error["code"]) == (499, "cancelled")
    answer = await nth_answer(script, 2)
    answer.begin()
    answer.send("one ")
    for client in clients[1:]:
        await client.seen(b"one ")
    assert (await cancelling.request("POST", f"/v1/requests/{ids[1]}/cancel")).status == 204
    cancelled = await clients[1].response()
    assert b'"code": "cancelled"' in cancelled.body
    answer.send("two ")
    answer.end()
    response = await clients[2].response()
    assert response.body == answer.body_for(response)


async def test_what_a_tier_below_turns_away_waits_again_with_all_its_clients(
    engine: ScriptedEngine, start: Start, script: AnswerScript
) -> None:
    below = await start()
    tier = {"name": "below", "url": f"http://127.0.0.1:{below.port}", "profile": "cloud"}
    running = await all_ready(await start(pools=[tier | {"tier": True}]))
    async with full(below, script):
        clients = await together(running, (), ())
        await asyncio.sleep(0.1)
        clients += await together(running, ())
    answer = await nth_answer(script, 2)
    answer.send_all(*WORDS)
    for client in clients:
        response = await client.response()
        own = response.header("x-request-id") or ""
        assert response.body == b"".join(answer.event(word, own) for word in WORDS) + (
            b"data: [DONE]\n\n"
        )
    await eventually(lambda: len(script.answers) == 2)
