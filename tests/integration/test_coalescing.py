"""Identical requests at the same time are one decode, and each client has its own answer.

Shared decodes when clients leave, stall or are refused, and when the engine fails.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.integration import answers
from tests.integration.client import CHAT
from tests.integration.otlp import ERROR, Collect, Span
from tests.integration.running import Running, Start, all_ready, eventually, pools, total
from tests.integration.scripted_answers import (
    AnswerScript,
    full,
    nth_answer,
    sharing,
    start_request,
    together,
)
from tests.integration.scripted_engine import Engine, ScriptedEngine


async def test_three_identical_streams_are_one_decode(
    engine: ScriptedEngine, sidecar: Running, script: AnswerScript
) -> None:
    clients = await together(sidecar, (), [("X-Request-Id", "mine")], [("User-Agent", "x/1")])
    answer = await nth_answer(script)
    assert sidecar.ledger.leased == 1
    answer.send_all("one ", "two ", "three")
    responses = [await client.response() for client in clients]
    assert len(engine.generating) == 1
    for response in responses:
        assert response.status == 200
        assert response.body == answer.body_for(response)
        assert response.header("x-orch-queue-position") == "0"
        assert response.header("x-measurement-type") == "batched_online"
        assert response.header("content-type") == "text/event-stream; charset=utf-8"
        assert "ttft;dur=" in (response.header("server-timing") or "")
    assert responses[1].header("x-request-id") == "mine"
    for name in ("x-request-id", "x-orch-request-id", "x-correlation-id"):
        assert len({response.header(name) for response in responses}) == 3
    engine.answer = answers.answer
    for client in clients:
        assert (await client.post(CHAT)).status == 200  # their connections go on


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


TRACES = [f"{number:032x}" for number in range(1, 4)]


def traced(trace: str) -> list[tuple[str, str]]:
    return [("traceparent", f"00-{trace}-{'a' * 16}-01")]


def assert_linked(joiner: dict[str, Span], leader: dict[str, Span]) -> None:
    """It has nothing but a server's span, which says whose decode it was."""
    assert set(joiner) == {CHAT}
    server = joiner[CHAT]
    assert server.links == [(leader[CHAT].trace_id, leader[CHAT].span_id)]
    assert server.attributes["orch.coalesced"] is True
    assert "orch.fanout" not in server.attributes


async def test_decode_is_in_one_trace_and_the_others_link_to_it(
    collect: Collect, start: Start, engine: ScriptedEngine, script: AnswerScript
) -> None:
    running = await start()
    clients = await together(running, *map(traced, TRACES), stream=False)
    answer = await nth_answer(script)
    answer.answer.json(answer.json_for())
    answer.finished.set()
    for client in clients:
        await client.response()
    found = await collect(running)
    leader, *joiners = (found.of_trace(trace) for trace in TRACES)
    assert len(found.spans) == 5
    assert set(leader) == {CHAT, "admission.wait", "engine.request"}
    sent = answer.answer.request.header("traceparent")
    assert sent == f"00-{TRACES[0]}-{leader['engine.request'].span_id}-01"
    assert leader["engine.request"].parent_id == leader[CHAT].span_id
    assert leader[CHAT].links == []
    assert "orch.coalesced" not in leader[CHAT].attributes
    for span in leader[CHAT], leader["engine.request"]:
        assert span.attributes["orch.fanout"] == 3
    for joiner in joiners:
        assert_linked(joiner, leader)
    expected = {
        "orch.outcome": "ok", "http.response.status_code": 200, "orch.cost": 1,
        "orch.pool": "cloud", "orch.class": "interactive", "measurement_type": "batched_online",
        "gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 3,
    }  # fmt: skip
    for span in (leader["engine.request"], *(spans[CHAT] for spans in (leader, *joiners))):
        assert {key: span.attributes.get(key) for key in expected} == expected
        assert span.status != ERROR
        assert span.attributes["orch.first_byte_s"] > 0
    own = {spans[CHAT].attributes["orch.request_id"] for spans in (leader, *joiners)}
    assert len(own) == 3


async def test_generation_outlives_the_trace_of_the_request_that_began_it(
    collect: Collect, start: Start, engine: ScriptedEngine, script: AnswerScript
) -> None:
    running = await start()
    async with full(running, script):
        first, second = await together(running, *map(traced, TRACES[:2]))
        await first.close()
        await eventually(lambda: sharing(running) == 1)
    (await nth_answer(script, 2)).send_all("one ")
    await second.response()
    found = await collect(running)
    leader, joiner = (found.of_trace(trace) for trace in TRACES[:2])
    assert set(leader) == {CHAT, "admission.wait", "engine.request"}
    assert leader[CHAT].attributes["orch.outcome"] == "cancelled"
    assert leader[CHAT].end_ns < leader["engine.request"].start_ns
    assert leader["engine.request"].attributes["orch.outcome"] == "ok"
    assert leader["admission.wait"].end_ns <= leader["engine.request"].start_ns
    assert_linked(joiner, leader)
    assert joiner[CHAT].attributes["orch.outcome"] == "ok"


@pytest.mark.parametrize("midway", [False, True])
async def test_failed_and_abandoned_decodes_have_their_spans(
    collect: Collect, start: Start, engine: ScriptedEngine, script: AnswerScript, midway: bool
) -> None:
    running = await start()
    clients = await together(running, *map(traced, TRACES[:2]))
    answer = await nth_answer(script)
    if midway:
        answer.begin()
        answer.send("one ")
        for client in clients:
            await client.seen(b"one ")
    answer.answer.reset()
    answer.finished.set()
    for client in clients:
        await client.response()
    [gone] = await together(running, traced(TRACES[2]))
    await nth_answer(script, 2)
    await gone.close()
    await running.idle()
    found = await collect(running)
    leader, joiner, alone = (found.of_trace(trace) for trace in TRACES)
    assert_linked(joiner, leader)
    for span in (leader[CHAT], leader["engine.request"], joiner[CHAT]):
        assert span.attributes["orch.outcome"] == "engine_failed"
        assert span.status == ERROR
    assert set(alone) == {CHAT, "admission.wait", "engine.request"}
    assert {alone[name].attributes["orch.outcome"] for name in (CHAT, "engine.request")} == {
        "cancelled"
    }


WORDS = ("one ", "two ", "three")


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
