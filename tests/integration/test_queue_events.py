"""A client that watches the queue gets its status at once, then its place until it is served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from orch_sidecar.proxy import queue_events
from tests.integration.client import CHAT
from tests.integration.running import Running, Start, all_ready, eventually, pools
from tests.integration.scripted_answers import AnswerScript, nth_answer, sharing, start_request
from tests.integration.scripted_engine import Engine, ScriptedEngine
from tests.integration.test_official_clients import MESSAGES
from tests.integration.watching import WATCH, busy, free, shown, watching


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places are shown without the wait between two looks."""
    monkeypatch.setattr(queue_events, "LOOK_EVERY_S", 0.01)


async def test_queued_stream_begins_at_once_and_becomes_the_engines(
    sidecar: Running, script: AnswerScript
) -> None:
    first = await busy(sidecar, script)
    client = await watching(sidecar)
    head = client.buffer.partition(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"http/1.1 200 ok\r\n")
    for line in (
        b"content-type: text/event-stream; charset=utf-8",
        b"transfer-encoding: chunked",
        b"cache-control: no-cache",
        b"x-accel-buffering: no",
        b"x-measurement-type: batched_online",
        b"x-orch-queue-position: 0",
    ):
        assert line in head.split(b"\r\n"), line
    assert b"server-timing" not in head
    await free(script, first)
    answer = await nth_answer(script, 2)
    assert answer.answer.request.header("accept-encoding") is None
    answer.send_all("one", "two")
    response = await client.response()
    seen = shown(response.body)
    assert seen.positions[0] == 0
    assert seen.started == 1
    assert seen.rest == b"".join(map(answer.event, ("one", "two"))) + b"data: [DONE]\n\n"
    assert (await client.get("/livez")).status == 200, "the connection goes on"
    await eventually(lambda: not sidecar.sidecar.watchers._watched)


async def test_request_that_waits_for_nothing_gets_the_response_of_any_other(
    sidecar: Running,
) -> None:
    client = await sidecar.client()
    response = await client.post(headers=[WATCH], stream=True)
    assert (response.status, shown(response.body).positions) == (200, [])
    assert response.header("server") == "uvicorn"
    assert response.header("server-timing") is not None
    response = await client.post(headers=[WATCH, ("X-Orch-Class", "none")], stream=True)
    assert response.status == 400


async def test_header_has_no_effect_on_an_answer_that_is_not_streamed(
    sidecar: Running, script: AnswerScript
) -> None:
    first = await busy(sidecar, script)
    client = await sidecar.client()
    client.start(headers=[WATCH], stream=False)
    await eventually(lambda: sidecar.queued)
    await free(script, first)
    answer = await nth_answer(script, 2)
    answer.answer.json(answer.json_for())
    answer.finished.set()
    response = await client.response()
    assert response.json()["choices"][0]["message"]["content"] == "one two three"


async def test_client_that_leaves_the_queue_is_forgotten(
    sidecar: Running, script: AnswerScript
) -> None:
    first = await busy(sidecar, script)
    client = await watching(sidecar)
    client.reset()
    await eventually(lambda: not sidecar.queued)
    await eventually(lambda: sidecar.sidecar.watchers._task is None)
    await free(script, first)
    await sidecar.idle()


async def test_http_1_0_gets_the_stream_without_chunks_to_the_end_of_its_connection(
    sidecar: Running, script: AnswerScript
) -> None:
    first = await busy(sidecar, script)
    client = await sidecar.client()
    body = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "a"}]}
    client.send_request("POST", CHAT, body, [WATCH], version="1.0")
    await client.seen(b": queued position=0")
    await free(script, first)
    answer = await nth_answer(script, 2)
    answer.send_all("one")
    head, _, content = (await client.rest()).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert shown(content).rest == answer.event("one") + b"data: [DONE]\n\n"


async def test_stop_of_the_sidecar_is_an_error_event(
    sidecar: Running, script: AnswerScript
) -> None:
    await busy(sidecar, script)
    client = await watching(sidecar)
    await sidecar.stop()
    assert b'"code": "draining"' in shown((await client.response()).body).rest


SAME: dict[str, Any] = {"temperature": 0, "seed": 7}


async def test_all_clients_of_a_shared_generation_see_its_place_and_get_its_answer(
    sidecar: Running, engine: ScriptedEngine, script: AnswerScript
) -> None:
    first = await busy(sidecar, script)
    client = await watching(sidecar, **SAME)
    joined = await sidecar.client()
    joined.start(CHAT, [WATCH], **SAME)
    await joined.seen(b": queued position=0")
    plain = await start_request(sidecar, **SAME)
    await eventually(lambda: sharing(sidecar) == 3)
    await free(script, first)
    answer = await nth_answer(script, 2)
    answer.send_all("one", "two")
    responses = [await each.response() for each in (client, joined, plain)]
    for response in responses:
        assert shown(response.body).rest == answer.body_for(response)
        assert response.header("x-measurement-type") == "batched_online"
    assert [shown(each.body).positions[:1] for each in responses] == [[0], [0], []]
    assert len({each.header("x-request-id") for each in responses}) == 3
    assert len(engine.generating) == 2
    for each in (client, joined):
        assert (await each.get("/livez")).status == 200, "the connection goes on"


async def test_lost_engine_hands_a_watched_request_to_another_of_its_measurement_type(
    start: Start, engine: ScriptedEngine, another: Engine, script: AnswerScript
) -> None:
    """An answer keeps the label with which it has begun, so `home` is no alternative."""
    b, home = await another(), await another(slots=1, profile="home")
    b.answer = script
    sidecar = await all_ready(await start(**pools(cloud=engine, home=home, other=b)))
    pool = sidecar.sidecar.pools["cloud"]
    blockers = [await sidecar.client() for _ in range(2)]
    for each, name in zip(blockers, ("cloud", "other"), strict=True):
        each.start(CHAT, [("X-Orch-Pool", name)], stream=False, n=4)
    await eventually(lambda: len(script.answers) == 2)
    client = await watching(sidecar, ("X-Orch-Pool", "cloud; prefer"))
    assert pool.queues.depth == 1
    await engine.stop()
    await eventually(lambda: sidecar.sidecar.pools["other"].queues.depth == 1)
    there = next(each for each in script.answers if each.answer.request.header("host") == b.url[7:])
    there.answer.json({"id": "chatcmpl-other"})
    there.finished.set()
    await eventually(lambda: len(script.answers) == 3)
    script.answers[2].send_all("one")
    response = await client.response()
    assert response.header("x-measurement-type") == "batched_online"
    assert shown(response.body).rest.endswith(b"data: [DONE]\n\n")
    assert home.generating == []
    for each in blockers:
        assert (await each.response()).status in (200, 502)


async def test_watched_request_that_only_another_type_could_serve_is_refused(
    start: Start, engine: ScriptedEngine, another: Engine, script: AnswerScript
) -> None:
    home = await another(slots=1, profile="home")
    sidecar = await all_ready(await start(**pools(cloud=engine, home=home)))
    blocker = await sidecar.client()
    blocker.start(CHAT, [("X-Orch-Pool", "cloud")], stream=False, n=4)
    await eventually(lambda: script.answers)
    client = await watching(sidecar, ("X-Orch-Pool", "cloud; prefer"))
    await engine.stop()
    response = await client.response()
    assert response.header("x-measurement-type") == "batched_online"
    error = json.loads(shown(response.body).rest.split(b"\n")[0][6:])["error"]
    assert error["retriable"] is True
    assert home.generating == []
    assert (await blocker.response()).status == 502


HEADERS = {"X-Orch-Queue-Events": "sse"}
PREDICTED = {"X-Orch-Max-Wait-Ms": "80"}


@pytest.fixture
async def client(sidecar: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"http://127.0.0.1:{sidecar.port}/v1"
    async with openai.AsyncOpenAI(
        base_url=url, api_key="any", max_retries=0, default_headers=HEADERS
    ) as client:
        yield client


async def test_openais_client_streams_what_the_engine_sends(
    sidecar: Running, engine: ScriptedEngine, client: openai.AsyncOpenAI, script: AnswerScript
) -> None:
    first = await busy(sidecar, script)
    stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    assert stream.response.status_code == 200, "before the engine has the request"
    assert sidecar.queued == 1
    assert stream.response.headers["x-orch-queue-position"] == "0"
    reading = asyncio.create_task(_texts(stream))
    await free(script, first)
    await eventually(lambda: len(script.answers) == 2)
    script.answers[1].send_all("one ", "two")
    assert await reading == "one two"


async def _texts(stream: openai.AsyncStream[openai.types.chat.ChatCompletionChunk]) -> str:
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def test_openais_client_reads_responses_and_answers_that_are_not_streamed(
    sidecar: Running, engine: ScriptedEngine, client: openai.AsyncOpenAI, script: AnswerScript
) -> None:
    first = await busy(sidecar, script)
    reading = asyncio.create_task(_response(client))
    plain = asyncio.create_task(client.chat.completions.create(model="tiny", messages=MESSAGES))
    await eventually(lambda: sidecar.queued == 2)
    engine.answer = ScriptedEngine().answer  # as it stands
    await free(script, first)
    assert await reading == "one two three"
    assert (await plain).choices[0].message.content == "one two three"


async def _response(client: openai.AsyncOpenAI) -> str:
    stream = await client.responses.create(model="tiny", input="hi", stream=True)
    return "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])


async def test_anthropics_client_streams_and_raises(
    sidecar: Running, engine: ScriptedEngine, script: AnswerScript
) -> None:
    url = f"http://127.0.0.1:{sidecar.port}"
    async with anthropic.AsyncAnthropic(
        base_url=url, api_key="any", max_retries=0, default_headers=HEADERS
    ) as client:
        first = await busy(sidecar, script)
        with pytest.raises(anthropic.APIStatusError, match="longest wait"):
            await _message(client, PREDICTED)
        reading = asyncio.create_task(_message(client, {}))
        await eventually(lambda: sidecar.queued == 1)
        engine.answer = ScriptedEngine().answer
        await free(script, first)
        assert await reading == "one two three"


async def _message(client: anthropic.AsyncAnthropic, headers: dict[str, str]) -> str:
    async with client.messages.stream(
        model="tiny", max_tokens=8, messages=[{"role": "user", "content": "hi"}],
        extra_headers=headers,
    ) as stream:  # fmt: skip
        return "".join([text async for text in stream.text_stream])
