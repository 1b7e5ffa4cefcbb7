"""Identical requests at the same time are one decode, and each client has its own answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration import answers
from tests.integration.client import CHAT, body_of
from tests.integration.running import Running, eventually
from tests.integration.scripted_answers import (
    AnswerScript,
    nth_answer,
    sharing,
    together,
)
from tests.integration.scripted_engine import ScriptedEngine


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


KEY = ("Authorization", "Bearer one")
LIKE_IT: dict[str, Any] = {"temperature": 0}


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ([("Authorization", "Bearer two")], LIKE_IT),
        ([KEY, ("Cookie", "user=1")], LIKE_IT),
        ([KEY, ("X-Orch-No-Coalesce", "")], LIKE_IT),
        ([KEY, ("X-Orch-Pool", "cloud")], LIKE_IT),
        ([KEY], LIKE_IT | {"stream": False}),
        ([KEY], {}),
    ],
)
async def test_what_differs_in_what_matters_has_a_decode_of_its_own(
    engine: ScriptedEngine,
    sidecar: Running,
    headers: list[tuple[str, str]],
    body: dict[str, Any],
) -> None:
    script = AnswerScript()
    engine.answer = script
    for fields, document in (([KEY], LIKE_IT), (headers, body)):
        client = await sidecar.client()
        stream = document.get("stream", True)
        client.send_request("POST", CHAT, body_of(CHAT, stream=stream) | document, fields)
    await nth_answer(script, 2)
    for answer in script.answers:
        answer.answer.json({})
        answer.finished.set()
    await sidecar.idle()


async def test_engine_gets_no_accept_encoding_and_clients_what_they_can_read(
    engine: ScriptedEngine, sidecar: Running, script: AnswerScript
) -> None:
    [modern] = await together(sidecar, [("Accept-Encoding", "gzip"), ("X-A", "1")])
    old = await sidecar.client()
    old.send_request(
        "POST", CHAT, body_of(CHAT, stream=True, temperature=0), [("X-A", "1")], version="1.0"
    )
    await eventually(lambda: sharing(sidecar) == 2)
    answer = await nth_answer(script)
    assert engine.generating[0].header("accept-encoding") is None
    assert engine.generating[0].header("x-a") == "1"
    answer.send_all("one ", "two ")
    assert (response := await modern.response()).body == answer.body_for(response)
    head, _, body = (await old.rest()).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body.endswith(b"data: [DONE]\n\n")
