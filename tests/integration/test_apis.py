"""Each API that takes slots: plain, streamed, in parts, cancelled, its engine dead."""

from __future__ import annotations

import pytest

from orch_sidecar.api.endpoints import ENDPOINTS
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
from tests.integration.running import Running, Start, all_ready, eventually, pools
from tests.integration.scripted_engine import Engine, ScriptedEngine

DIVIDES = True

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
