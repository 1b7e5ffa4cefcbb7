"""Clients that watch the queue, where a generation is shared, and where there are several pools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orch_sidecar.proxy import queue_events
from tests.integration.client import CHAT
from tests.integration.running import Running, Start, all_ready, eventually, pools
from tests.integration.scripted_answers import AnswerScript, nth_answer, sharing, start_request
from tests.integration.scripted_engine import Engine, ScriptedEngine
from tests.integration.watching import WATCH, busy, free, shown, watching

SAME: dict[str, Any] = {"temperature": 0, "seed": 7}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places are shown without the wait between two looks."""
    monkeypatch.setattr(queue_events, "LOOK_EVERY_S", 0.01)


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
