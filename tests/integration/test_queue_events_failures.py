"""A stream that began in the queue, and an engine that does not answer with one."""

from __future__ import annotations

import json

import pytest

from orch_sidecar.proxy import queue_events
from tests.integration.client import CHAT
from tests.integration.running import Running, total
from tests.integration.scripted_answers import AnswerScript, nth_answer
from tests.integration.watching import busy, free, shown, watching


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places are shown without the wait between two looks."""
    monkeypatch.setattr(queue_events, "LOOK_EVERY_S", 0.01)


async def test_engines_error_is_relayed_as_an_event(sidecar: Running, script: AnswerScript) -> None:
    first = await busy(sidecar, script)
    client = await watching(sidecar)
    await free(script, first)
    answer = await nth_answer(script, 2)
    error = {"message": "the prompt is too long", "type": "BadRequestError", "code": 400}
    answer.answer.json({"error": error}, 400)
    answer.finished.set()
    response = await client.response()
    rest = shown(response.body).rest
    assert rest == b"data: " + json.dumps({"error": error}).encode() + b"\n\ndata: [DONE]\n\n"
    label = {"outcome": "client_error", "route": CHAT, "status": 200}
    assert total(await sidecar.metrics(), "orch_requests_total", **label) == 1


async def test_engine_that_breaks_its_stream_ends_it_with_an_event(
    sidecar: Running, script: AnswerScript
) -> None:
    first = await busy(sidecar, script)
    client = await watching(sidecar)
    await free(script, first)
    answer = await nth_answer(script, 2)
    answer.begin()
    answer.send("one")
    await client.seen(b'"one"')
    answer.answer.reset()
    answer.finished.set()
    rest = shown((await client.response()).body).rest
    assert rest.startswith(answer.event("one"))
    assert b"engine_failed" in rest


async def test_request_that_the_engine_sends_back_is_shown_its_place_again(
    sidecar: Running, script: AnswerScript
) -> None:
    first = await busy(sidecar, script)
    client = await watching(sidecar)
    await free(script, first)
    rejected = await nth_answer(script, 2)
    error = {"message": "going", "type": "engine_gone", "code": 503, "retriable": True}
    rejected.answer.json({"error": error}, 503)
    rejected.finished.set()
    (await nth_answer(script, 3)).send_all("one")
    seen = shown((await client.response()).body)
    assert set(seen.positions) == {0}
    assert seen.started >= 1
    assert b"going" not in seen.rest
    assert seen.rest.endswith(b"data: [DONE]\n\n")


async def test_stop_of_the_sidecar_is_an_error_event(
    sidecar: Running, script: AnswerScript
) -> None:
    await busy(sidecar, script)
    client = await watching(sidecar)
    await sidecar.stop()
    assert b'"code": "draining"' in shown((await client.response()).body).rest
