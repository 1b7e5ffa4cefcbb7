"""Requests that run in parts: the answer to the whole, never over the slots, ended as one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.integration.client import CHAT, COMPLETIONS, Response
from tests.integration.echo import Echo, directly, holding, large_body_of
from tests.integration.otlp import Collect
from tests.integration.running import Running, Start, all_ready, eventually, pools, total
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.scripts import breaks_off
from tests.integration.wire import Answer

DIVIDES = True


def events(response: Response) -> list[Any]:
    """The events of a stream, but for the end, which it must have."""
    *found, done, rest = response.body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [json.loads(event.removeprefix(b"data: ")) for event in found]


def texts(stream: list[Any]) -> dict[int, str]:
    found: dict[int, str] = {}
    for choice in (choice for event in stream for choice in event["choices"]):
        at = choice["index"]
        found[at] = found.get(at, "") + (choice.get("text") or choice["delta"]["content"])
    return found


# Streams


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_stream_has_all_choices_one_usage_and_one_end(
    home: ScriptedEngine, at_home: Running, path: str
) -> None:
    body = large_body_of(path, stream=True, stream_options={"include_usage": True})
    response = await (await at_home.client()).request("POST", path, body)
    found, expected = events(response), events(await directly(home, path, body))
    assert texts(found) == texts(expected)
    assert found[-1]["usage"] == expected[-1]["usage"]
    assert {event["id"] for event in found} == {response.header("x-request-id")}
    assert sum("usage" in event for event in found) == 1


async def test_streams_of_parts_come_as_they_are_generated(
    engine: ScriptedEngine, start: Start
) -> None:
    """Each part sends a word, and the client has both before either ends."""
    ends = asyncio.Event()

    async def word(answer: Answer) -> None:
        answer.head(200, [("content-type", "text/event-stream")])
        answer.event({"choices": [{"index": 0, "text": answer.request.json()["prompt"][0]}]})
        await ends.wait()
        answer.event("[DONE]")
        answer.end()

    engine.answer = word
    sidecar = await start()
    client = await sidecar.client()
    client.start(COMPLETIONS, prompt=[*"abcdefg"])
    for at, text in enumerate("abcd"):  # four slots
        await client.seen(b'"index":%d,"text":"%s"' % (at, text.encode()))
    ends.set()
    assert texts(events(await client.response())) == dict(enumerate("abcdefg"))


@pytest.mark.parametrize("stream", [False, True])
async def test_part_that_breaks_off_ends_the_request_with_an_error(
    engine: ScriptedEngine, start: Start, stream: bool
) -> None:
    engine.answer = Echo()
    engine.scripts.extend([Echo(), breaks_off])
    sidecar = await start()
    response = await (await sidecar.client()).post(COMPLETIONS, prompt=[*"abcdefg"], stream=stream)
    if stream:
        assert response.status == 200
        assert b'"error"' in response.body
        assert response.body.endswith(b"data: [DONE]\n\n")
    else:
        assert response.status == 502
        assert response.error["code"] == "engine_failed"
    await sidecar.idle()
    await eventually(lambda: not engine.present)


@pytest.mark.parametrize("stream", [False, True])
async def test_error_of_the_engine_is_the_answer(
    engine: ScriptedEngine, start: Start, stream: bool
) -> None:
    """Before anything was sent the client gets it as it is, later as an event."""

    async def refuse(answer: Answer) -> None:
        answer.json({"error": {"message": "too long", "type": "BadRequestError"}}, 400)

    engine.answer = refuse
    sidecar = await start()
    response = await (await sidecar.client()).post(COMPLETIONS, prompt=[*"abcdefg"], stream=stream)
    assert (response.status, response.error["message"]) == (400, "too long")
    await sidecar.idle()


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_leaves_ends_all_parts(
    engine: ScriptedEngine, start: Start, stream: bool
) -> None:
    echo = holding(engine)
    sidecar = await start()
    client = await sidecar.client()
    client.start(COMPLETIONS, prompt=[*"abcdefg"], stream=stream)
    await eventually(lambda: len(echo.waiting) == 4 and sidecar.queued == 3)
    await client.close()
    await sidecar.idle()
    await eventually(lambda: not engine.present)
    assert len(engine.generating) == 4


# Admission


async def test_first_part_is_refused_where_the_queue_is_full_and_later_ones_take_no_place(
    engine: ScriptedEngine, start: Start
) -> None:
    echo = holding(engine)
    sidecar = await start(queue_capacity=1)
    clients = [await sidecar.client() for _ in range(3)]
    clients[0].start(COMPLETIONS, prompt=[*"abcdefg"], stream=False)
    await eventually(lambda: len(echo.waiting) == 4 and sidecar.queued == 3)
    clients[1].start(COMPLETIONS, prompt=[*"hijk"], stream=False)  # takes the only place
    await eventually(lambda: sidecar.queued == 7)
    refused = await clients[2].post(COMPLETIONS, prompt=[*"lm"])
    assert (refused.status, refused.error["code"]) == (429, "ADMISSION_REJECT")
    echo.release_all()
    for client in clients[:2]:
        assert (await client.response()).status == 200


@pytest.mark.parametrize("on_request", [False, True])
async def test_parts_go_to_pools_of_one_measurement_type(
    engine: ScriptedEngine, home: ScriptedEngine, start: Start, on_request: bool
) -> None:
    engine.answer = home.answer = Echo()
    settings = pools(cloud=engine, home=home)
    settings["pools"][1]["on_request"] = on_request
    sidecar = await all_ready(await start(**settings))
    response = await (await sidecar.client()).post(COMPLETIONS, prompt=[*"abcdefghij"])
    assert (response.status, response.header("x-measurement-type")) == (200, "batched_online")
    assert len(engine.generating) == 10
    assert home.generating == []
    asked = [("X-Orch-Measurement-Type", "single_stream")]
    response = await (await sidecar.client()).post(COMPLETIONS, asked, prompt=[*"abc"])
    assert (response.status, response.header("x-measurement-type")) == (200, "single_stream")
    assert len(home.generating) == 3


async def test_client_has_a_bounded_number_of_parts(
    home: ScriptedEngine, at_home: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take no places in the queue, which would bound them."""
    monkeypatch.setattr("orch_sidecar.splitting.stage.MAX_PARTS_OF_CLIENT", 8)
    echo = holding(home)
    first, second = await at_home.client(), await at_home.client()
    first.start(COMPLETIONS, prompt=[*"abcdef"], stream=False)
    await eventually(lambda: at_home.queued == 5)
    refused = await second.post(COMPLETIONS, prompt=[*"ghi"])
    assert (refused.status, refused.error["code"]) == (429, "ADMISSION_REJECT")
    assert refused.header("retry-after") is not None
    echo.release_all()
    assert (await first.response()).status == 200
    assert (await (await at_home.client()).post(COMPLETIONS, prompt=[*"ghi"])).status == 200


async def test_what_parts_repeat_of_a_body_counts_against_the_budget_of_bodies(
    home: ScriptedEngine, start: Start
) -> None:
    home.answer = Echo()
    sidecar = await start(
        engine_url=home.url, profile="home", max_body_bytes=100_000, body_budget_bytes=250_000
    )
    for n, status in ((4, 503), (2, 200), (2, 200)):
        response = await (await sidecar.client()).post(COMPLETIONS, prompt="a" * 60_000, n=n)
        assert response.status == status
        assert status == 200 or response.error["code"] == "body_budget_full"


async def test_request_that_names_no_model_runs_in_parts(
    home: ScriptedEngine, at_home: Running
) -> None:
    home.answer = Echo()
    body = {"prompt": [*"abc"], "max_tokens": 4}
    assert (await (await at_home.client()).request("POST", COMPLETIONS, body)).status == 200
    assert len(home.generating) == 3


async def test_profile_without_split_keeps_requests_whole(
    engine: ScriptedEngine, start: Start
) -> None:
    sidecar = await start()
    rules = sidecar.pool.admission.rules.model_copy(update={"split": False})
    sidecar.pool.gate.reload(rules)
    response = await (await sidecar.client()).post(COMPLETIONS, prompt=[*"abcdefg"])
    assert (response.status, response.error["code"]) == (400, "cost_exceeds_slots")


# Metrics and spans


async def test_request_is_one_and_its_parts_are_generations(
    home: ScriptedEngine, at_home: Running
) -> None:
    client = await at_home.client()
    assert (await client.post(COMPLETIONS, prompt=[*"abc"])).status == 200
    metrics = await at_home.metrics()
    assert total(metrics, "orch_requests_total") == 1
    assert total(metrics, "orch_output_tokens_total") == 3
    assert total(metrics, "orch_input_tokens_total") == 3


async def test_span_tells_the_parts(engine: ScriptedEngine, start: Start, collect: Collect) -> None:
    engine.answer = Echo()
    sidecar = await start()
    assert (await (await sidecar.client()).post(COMPLETIONS, prompt=[*"abcdefg"])).status == 200
    spans = (await collect(sidecar)).spans
    [server] = [span for span in spans if "orch.parts" in span.attributes]
    assert server.attributes["orch.parts"] == 7
    assert server.attributes["orch.cost"] == 7
    assert server.attributes["measurement_type"] == "batched_online"
    sent = [span for span in spans if span.name == "engine.request"]
    assert len(sent) == 7
    assert {span.parent_id for span in sent} == {server.span_id}
    assert len({span.attributes["orch.lease"] for span in sent}) == 7
