"""What is refused to a shared decode, and how it ends when the sidecar, or somebody, ends it."""

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


async def test_stopping_sidecar_sends_errors_to_queued_and_to_streaming_clients(
    engine: ScriptedEngine, sidecar: Running, script: AnswerScript
) -> None:
    answered = await together(sidecar, (), n=1, max_tokens=5)
    answered += await together(sidecar, (), n=1, max_tokens=5)
    answer = await nth_answer(script)
    answer.begin()
    answer.send("one ")
    for client in answered:
        await client.seen(b"one ")
    busy = await start_request(sidecar, n=3)
    await nth_answer(script, 2)
    waiting = [await start_request(sidecar), await start_request(sidecar)]
    await eventually(lambda: sharing(sidecar) == 4)
    assert sidecar.queued == 1
    await sidecar.stop()
    for client in waiting:
        response = await client.response()
        assert (response.status, response.error["code"]) == (503, "draining")
    for client in answered:
        response = await client.response()
        assert b'"code": "draining"' in response.body
    await busy.close()


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
