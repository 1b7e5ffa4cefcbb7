"""Each API that takes slots: plain, streamed, in parts, cancelled, its engine dead.

Requests that run in parts: the answer to the whole, never over the slots, ended as one.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from orch_sidecar.api.endpoints import ENDPOINTS
from tests.integration.client import CHAT, COMPLETIONS, Response
from tests.integration.echo import (
    ONE,
    SEVERAL,
    STREAMED,
    Echo,
    body_of,
    directly,
    holding,
    large_body_of,
)
from tests.integration.otlp import Collect
from tests.integration.running import Running, Start, all_ready, eventually, pools, total
from tests.integration.scripted_engine import Engine, ScriptedEngine
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


PATHS = [*ONE]
# A query and a document are two sequences, where the model reads one at a time.
ALONE = [
    path for path in PATHS if "score" not in path.replace("generative_", "") and "rank" not in path
]


def test_every_api_that_takes_slots_is_driven() -> None:
    assert {path for path, each in ENDPOINTS.items() if each.admitted} == {*PATHS}
    assert {path for path, each in ENDPOINTS.items() if each.division} == {*SEVERAL}


# Each API: plain, streamed, in parts, cancelled, with an engine that dies


@pytest.mark.parametrize("path", ALONE)
async def test_answer_is_the_engines(home: ScriptedEngine, at_home: Running, path: str) -> None:
    client = await at_home.client()
    bodies = [body_of(path)]
    if path in STREAMED:
        bodies.append(body_of(path, stream=True))
    for body in bodies:
        response = await client.request("POST", path, body)
        expected = await directly(home, path, body)
        assert (response.status, response.header("x-measurement-type")) == (200, "single_stream")
        own = (response.header("x-request-id") or "").encode()
        assert response.body.replace(b'"%b"' % own, b"null") == expected.body
    await at_home.idle()


@pytest.mark.parametrize("path", [path for path in PATHS if path not in ALONE])
async def test_pair_of_a_model_that_reads_one_at_a_time_needs_two_slots(
    home: ScriptedEngine, at_home: Running, path: str
) -> None:
    client = await at_home.client()
    response = await client.request("POST", path, body_of(path))
    assert (response.status, response.error["code"]) == (400, "cost_exceeds_slots")
    home.report(supported_workloads=["score", "rerank", "classification"])  # it reads pairs
    await eventually(lambda: at_home.pool.watcher.reads_pairs)
    response = await client.request("POST", path, large_body_of(path))
    expected = await directly(home, path, large_body_of(path))
    assert (response.status, response.json()) == (200, expected.json())


@pytest.mark.parametrize("path", [*SEVERAL])
async def test_parts_make_the_answer_to_the_whole(
    engine: ScriptedEngine, start: Start, path: str
) -> None:
    engine.answer = Echo()
    sidecar = await start()
    body = large_body_of(path)
    response = await (await sidecar.client()).request("POST", path, body)
    expected = (await directly(engine, path, body)).json()
    found = response.json()
    assert response.status == 200
    for document in (expected, found):
        document.pop("id", None)
    if path not in ALONE:  # their query is read for each part
        expected["usage"] = found["usage"]
    assert found == expected
    parts = [request for request in engine.received if request.lease]
    assert len(parts) > 1
    assert response.header("content-length") == str(len(response.body))
    await sidecar.idle()


@pytest.mark.parametrize("path", ALONE)
async def test_request_that_is_cancelled_ends_with_all_of_its_parts(
    home: ScriptedEngine, at_home: Running, path: str
) -> None:
    echo = holding(home)
    body = large_body_of(path) if path in SEVERAL else body_of(path)
    request_id = "0" * 31 + "a"
    client = await at_home.client()
    client.send_request("POST", path, body, [("X-Orch-Request-Id", request_id)])
    await eventually(lambda: echo.waiting)
    cancel = await (await at_home.client()).request(
        "POST", f"/v1/requests/{request_id}/cancel", b""
    )
    assert cancel.status == 204
    response = await client.response()
    assert response.status == 499
    await at_home.idle()
    await eventually(lambda: not home.present)
    assert len([each for each in home.received if each.lease]) == 1


@pytest.mark.parametrize("path", PATHS)
async def test_engine_that_dies_is_an_error_of_the_api(
    engine: ScriptedEngine, start: Start, path: str
) -> None:
    echo = holding(engine)
    sidecar = await start()
    client = await sidecar.client()
    client.send_request("POST", path, large_body_of(path) if path in SEVERAL else body_of(path))
    await eventually(lambda: echo.waiting)
    await engine.stop()
    response = await client.response()
    assert response.status == 502
    await engine.start()
    await sidecar.idle()


async def test_path_that_no_engine_has_is_refused_without_a_slot(
    start: Start, engine: ScriptedEngine, another: Engine
) -> None:
    """Of one engine, or of several; the next one at its address may have it."""
    b = await another()
    engine.answer, b.answer = Echo(), Echo()
    engine.state_fields["supported_workloads"] = ["completion", "chat"]
    b.state_fields["supported_workloads"] = ["chat", "score"]
    one, two = await start(), await all_ready(await start(**pools(a=engine, b=b)))
    for running, path, status in (
        (one, "/v1/score", 404),
        (two, "/v1/score", 200),
        (one, "/v1/embeddings", 404),
        (two, "/v1/embeddings", 404),
        (one, "/v1/completions", 200),
    ):
        reached = len(engine.received) + len(b.received)
        response = await (await running.client()).request("POST", path, body_of(path))
        assert response.status == status, path
        if status == 404:
            assert response.error["code"] == "not_found"
            text = f"no engine has {path}: their models are for completion, chat"
            assert response.error["message"].startswith(text)
            assert len(engine.received) + len(b.received) == reached
    await engine.stop()
    await eventually(lambda: not one.pool.watcher.ready)
    assert not one.pool.watcher.unserved, "it is not known what comes"
    engine.state_fields["supported_workloads"] = ["embedding"]
    await engine.start()
    client = await one.client()
    for path, status in (("/v1/embeddings", 200), ("/v1/chat/completions", 404)):
        await eventually(lambda: one.pool.watcher.ready)
        assert (await client.request("POST", path, body_of(path))).status == status
