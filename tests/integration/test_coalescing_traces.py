"""Traces of shared decodes: one engine's span, in the trace of the request it was begun for."""

from __future__ import annotations

import pytest

from tests.integration.client import CHAT
from tests.integration.otlp import ERROR, Collect, Span
from tests.integration.running import Start, eventually
from tests.integration.scripted_answers import AnswerScript, full, nth_answer, sharing, together
from tests.integration.scripted_engine import ScriptedEngine

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
