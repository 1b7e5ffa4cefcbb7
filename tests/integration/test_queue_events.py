"""A client that watches the queue gets its status at once, then its place until it is served."""

from __future__ import annotations

import pytest

from orch_sidecar.proxy import queue_events
from tests.integration.client import CHAT
from tests.integration.running import Running, eventually
from tests.integration.scripted_answers import AnswerScript, nth_answer
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


async def test_without_the_header_nothing_is_sent_before_the_engine_answers(
    sidecar: Running, script: AnswerScript
) -> None:
    first = await busy(sidecar, script)
    client = await sidecar.client()
    client.start()
    await eventually(lambda: sidecar.queued)
    await free(script, first)
    (await nth_answer(script, 2)).send_all("one")
    response = await client.response()
    assert b": queued" not in response.body
    assert response.header("server-timing") is not None
    assert sidecar.sidecar.watchers._task is None


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
