"""Responses that one of several engines stores: they are found by their ids."""

from __future__ import annotations

import pytest

from tests.integration import answers
from tests.integration.client import RESPONSES
from tests.integration.running import Running
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer

STORED = f"{RESPONSES}/resp_1"


def stores(engine: ScriptedEngine, *ids: str) -> None:
    """Makes an engine answer for these ids, as vLLM does."""

    async def respond(answer: Answer) -> None:
        name = answer.request.path.removeprefix(f"{RESPONSES}/").removesuffix("/cancel")
        if answer.request.method == "GET" or answer.request.path.endswith("/cancel"):
            wanted = name
        else:
            wanted = answer.request.json().get("previous_response_id")
        if wanted is not None and wanted not in ids:
            error = {"message": f"no {wanted}", "type": "invalid_request_error", "code": 404}
            answer.json({"error": error}, 404)
        elif wanted is None:
            await answers.answer(answer)
        else:
            answer.json({"id": wanted, "of": engine.port, "target": answer.request.target})

    engine.answer = respond
    engine.scripts.extend([respond] * 20)


@pytest.mark.parametrize(("method", "path"), [("GET", STORED), ("POST", f"{STORED}/cancel")])
async def test_it_is_found_at_whichever_engine_has_it(
    engine: ScriptedEngine, b: ScriptedEngine, pair: Running, method: str, path: str
) -> None:
    stores(engine)
    stores(b, "resp_1")
    client = await pair.client()
    body = b"" if method == "POST" else None
    for _ in range(2):
        response = await client.request(method, f"{path}?stream=false&starting_after=3", body)
        assert (response.status, response.json()["of"]) == (200, b.port)
        assert response.json()["target"] == f"{path}?stream=false&starting_after=3"
    assert response.header("x-measurement-type") == "batched_online"


async def test_what_no_engine_has_is_not_found(
    engine: ScriptedEngine, b: ScriptedEngine, pair: Running
) -> None:
    stores(engine)
    stores(b)
    response = await (await pair.client()).get(STORED)
    assert (response.status, response.error["code"]) == (404, "not_found")
    assert "no engine has this response" in response.error["message"]
    assert len(engine.received) == len(b.received) == 1


async def test_the_only_engine_answers_for_itself(engine: ScriptedEngine, sidecar: Running) -> None:
    stores(engine, "resp_2")
    client = await sidecar.client()
    response = await client.get(STORED)
    assert (response.status, response.error["message"]) == (404, "no resp_1")
    assert (await client.get(f"{RESPONSES}/resp_2")).status == 200
    for path in (f"{RESPONSES}/", f"{RESPONSES}/resp_1/cancel/x", f"{RESPONSES}/a%2Fb"):
        assert (await client.get(path)).status in (404, 405)
    assert len(engine.received) == 2


async def test_request_that_refers_to_a_response_goes_to_the_engine_that_has_it(
    engine: ScriptedEngine, b: ScriptedEngine, pair: Running
) -> None:
    stores(engine)
    stores(b, "resp_1")
    client = await pair.client()
    for _ in range(4):
        response = await client.post(RESPONSES, previous_response_id="resp_1")
        assert (response.status, response.json()["of"]) == (200, b.port)
    response = await client.post(RESPONSES, previous_response_id="resp_9")
    assert (response.status, response.error["type"]) == (404, "invalid_request_error")
    await pair.idle()


async def test_deleting_is_no_method_of_vllm(engine: ScriptedEngine, sidecar: Running) -> None:
    response = await (await sidecar.client()).request("DELETE", STORED)
    assert (response.status, response.header("allow")) == (405, "GET, HEAD")
    assert engine.received == []
