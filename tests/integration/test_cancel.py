"""Looking at a request by its id, and cancelling it, from another connection, wherever it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration.answers import EVENT_STREAM
from tests.integration.cancelling import assert_cancelled, cancel, named, new_id
from tests.integration.client import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Client, Response
from tests.integration.held import Held, started
from tests.integration.keyed import KeyRing
from tests.integration.running import Running, Start, eventually, total
from tests.integration.scripted_answers import AnswerScript, nth_answer, sharing
from tests.integration.scripted_engine import STEP_TIME, ScriptedEngine
from tests.integration.scripts import silent
from tests.integration.watching import busy, free
from tests.integration.wire import Answer

# One whose decodes are shared, one whose are not.
BOTH = (CHAT, MESSAGES)

CHUNK = b"data: " + b"x" * 8000 + b"\n\n"


class Endless:
    """Returns a script that streams until it is stopped."""

    def __init__(self, chunk: bytes = b'data: {"x": 1}\n\n') -> None:
        self.chunk = chunk
        self.stopped = 0

    async def __call__(self, answer: Answer) -> None:
        answer.head(200, EVENT_STREAM)
        try:
            while True:
                answer.chunk(self.chunk)
                await answer.drain()
                await asyncio.sleep(0.002)
        except asyncio.CancelledError:
            self.stopped += 1
            raise


@pytest.mark.parametrize("path", BOTH)
async def test_queued_request_is_refused_and_never_reaches_the_engine(
    sidecar: Running, engine: ScriptedEngine, held: Held, path: str
) -> None:
    busy = await started(sidecar, n=4)
    await eventually(lambda: held.waiting)
    request_id = new_id()
    queued = await started(sidecar, headers=[named(request_id)], seed=1, path=path)
    behind = await started(sidecar, seed=2)
    await eventually(lambda: sidecar.queued == 2)
    assert (await cancel(sidecar, request_id)).status == 204
    response = await queued.response()
    assert_cancelled(response)
    assert response.header("x-orch-request-id") == request_id
    assert sidecar.queued == 1
    held.release()
    assert (await busy.response()).status == 200
    await eventually(lambda: held.waiting)
    held.release()
    assert (await behind.response()).json() == {"seed": 2}
    assert len(engine.generating) == 2
    metrics = await sidecar.metrics()
    label: dict[str, object] = {"outcome": "cancelled_by_request", "route": path, "status": 499}
    assert total(metrics, "orch_requests_total", **label) == 1
    # A decode that others could have shared was given up for want of clients.
    outcome = "cancelled" if path == CHAT else "cancelled_by_request"
    label = {"class": "interactive", "outcome": outcome, "pool": "cloud"}
    assert total(metrics, "orch_admissions_total", **label) == 1
    await sidecar.idle()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
async def test_running_stream_ends_with_the_error_and_its_lease_comes_back(
    sidecar: Running, engine: ScriptedEngine, path: str
) -> None:
    script = engine.answer = Endless()
    request_id = new_id()
    client = await sidecar.client()
    client.start(path, [named(request_id)])
    await client.seen(b'{"x": 1}')
    assert sidecar.ledger.leased == 1
    assert (await cancel(sidecar, request_id)).status == 204
    response = await client.response()
    assert response.status == 200
    events = response.body.decode().strip().split("\n\n")
    answered = [event for event in events if event == 'data: {"x": 1}']
    errors = events[len(answered) :]
    assert len(errors) == (2 if path in (CHAT, COMPLETIONS) else 1)
    assert '"code": "cancelled"' in errors[0]
    assert ("event: error" in errors[0]) == (path in (RESPONSES, MESSAGES))
    await eventually(lambda: script.stopped)
    await sidecar.idle()
    assert sidecar.ledger.lease_count == 0
    engine.answer = Held()  # the client's connection is as good as before
    client.start(path, stream=False)
    await eventually(lambda: engine.answer.waiting)  # type: ignore[attr-defined]
    engine.answer.release()
    assert (await client.response()).status == 200


@pytest.mark.parametrize("path", BOTH)
async def test_unsent_bytes_of_a_slow_client_are_dropped(
    sidecar: Running, engine: ScriptedEngine, path: str
) -> None:
    """Otherwise they would be sent after the 204."""
    engine.answer = Endless(CHUNK)
    request_id = new_id()
    client = await sidecar.client(receive_buffer=4096)
    client.start(path, [named(request_id)])
    await eventually(lambda: any(each.paused for each in sidecar.sidecar.watchdog.responses()))
    assert (await cancel(sidecar, request_id)).status == 204
    with pytest.raises(ConnectionError):
        await client.rest()
    await sidecar.idle()


async def test_request_cancelled_during_its_upload_is_refused_at_once(
    sidecar: Running, engine: ScriptedEngine
) -> None:
    request_id = new_id()
    client = await sidecar.client()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nX-Orch-Request-Id: {request_id}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 20\r\n\r\n{"
    client.send(head.encode())
    await eventually(lambda: sidecar.sidecar.frontend.active)
    assert (await cancel(sidecar, request_id)).status == 204
    assert_cancelled(await client.response())
    assert await client.rest() == b""
    assert engine.generating == []


async def test_request_without_admission_is_cancelled_too(
    sidecar: Running, engine: ScriptedEngine
) -> None:
    engine.scripts.append(silent)
    request_id = new_id()
    client = await sidecar.client()
    client.send_request("POST", "/tokenize", {"prompt": "x"}, [named(request_id)])
    await eventually(lambda: engine.received)
    assert (await cancel(sidecar, request_id)).status == 204
    assert_cancelled(await client.response())


@pytest.fixture
async def operator(sidecar: Running) -> AsyncIterator[Client]:
    """A connection to the operators' listener."""
    client = await Client.connect(sidecar.sidecar.admin_port)
    yield client
    await client.close()


async def look(running: Running, request_id: str, *headers: tuple[str, str]) -> Response:
    client = await running.client()
    return await client.get(f"/v1/requests/{request_id}", headers)


async def status(running: Running, request_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await look(running, request_id)).json()
    return found


async def test_request_is_followed_from_the_queue_to_its_end(
    engine: ScriptedEngine, start: Start, script: AnswerScript
) -> None:
    engine.state_fields |= {"step_time": STEP_TIME, "prefill_tokens_per_s": 1000.0}
    sidecar = await start()
    first = await busy(sidecar, script)
    ids = [new_id(), new_id()]
    clients = [await sidecar.client() for _ in ids]
    for client, request_id, seed in zip(clients, ids, (1, 2), strict=True):
        client.start(CHAT, [named(request_id)], n=4, max_tokens=100, seed=seed)
        await eventually(lambda seed=seed: sidecar.queued == seed)  # type: ignore[misc]
    head, behind = [await status(sidecar, each) for each in ids]
    assert head.keys() == behind.keys()
    assert (head["state"], head["position"], behind["position"]) == ("queued", 0, 1)
    assert (head["id"], head["route"], head["model"]) == (ids[0], CHAT, "tiny")
    assert (head["class"], head["pool"]) == ("interactive", "cloud")
    assert head["measurement_type"] == "batched_online"
    assert 0 <= head["predicted_start_ms"] <= behind["predicted_start_ms"]
    assert head["waits_for"] == "a slot: all 4 are in use"
    assert behind["waits_for"] == (
        "1 request before it; the first of them waits for a slot: all 4 are in use"
    )
    assert (head["tokens"], head["batch"], head["wait_ms"]) == (None, None, None)
    await free(script, first)
    answer = await nth_answer(script, 2)
    running = await status(sidecar, ids[0])
    assert (running["state"], running["tokens"]) == ("running", 0)
    assert running["wait_ms"] is not None
    assert (running["position"], running["waits_for"]) == (None, None)
    answer.begin()
    answer.send("one", "two", "three")
    await clients[0].seen(b'"three"')
    running = await status(sidecar, ids[0])
    assert running["state"] == "running"
    assert running["tokens"] >= 1
    assert running["first_byte_ms"] >= running["wait_ms"]
    assert running["batch"] == engine.engine_state.document(None)["running"]
    answer.end()
    assert (await clients[0].response()).status == 200
    ended = await status(sidecar, ids[0])
    assert (ended["id"], ended["state"]) == (ids[0], "ended")
    assert ended.keys() == running.keys()
    (await nth_answer(script, 3)).send_all("one")
    assert (await clients[1].response()).status == 200


async def test_subscriber_of_a_shared_generation_sees_what_becomes_of_that(
    sidecar: Running, script: AnswerScript
) -> None:
    first = await busy(sidecar, script)
    ids = [new_id(), new_id()]
    clients = [await sidecar.client() for _ in ids]
    for number, (client, request_id) in enumerate(zip(clients, ids, strict=True), 1):
        client.start(CHAT, [named(request_id)], temperature=0)
        await eventually(lambda number=number: sharing(sidecar) == number)  # type: ignore[misc]
    own, joined = [await status(sidecar, each) for each in ids]
    assert [own["state"], joined["state"]] == ["queued", "queued"]
    assert [own["coalesced"], joined["coalesced"]] == [False, True]
    assert own["position"] == joined["position"] == 0
    await free(script, first)
    answer = await nth_answer(script, 2)
    answer.begin()
    answer.send("one")
    await clients[1].seen(b'"one"')
    joined = await status(sidecar, ids[1])
    assert (joined["state"], joined["pool"]) == ("running", "cloud")
    assert joined["first_byte_ms"] is not None
    answer.end()
    for client in clients:
        assert (await client.response()).status == 200


async def test_request_of_another_key_is_not_found_as_is_one_that_never_was(
    engine: ScriptedEngine, start: Start, script: AnswerScript, ring: KeyRing
) -> None:
    sidecar = await start(api_keys_file=ring.path)
    client, request_id = await sidecar.client(), new_id()
    client.start(CHAT, [named(request_id), ring.bearer("alice")])
    answer = await nth_answer(script)
    mine = await look(sidecar, request_id, ring.bearer("alice"))
    assert mine.json()["state"] == "running"
    others = await look(sidecar, request_id, ring.bearer("bob"))
    unknown_id = new_id()
    unknown = await look(sidecar, unknown_id, ring.bearer("bob"))
    assert (others.status, unknown.status) == (404, 404)
    assert others.body == unknown.body.replace(unknown_id.encode(), request_id.encode())
    assert (await look(sidecar, request_id)).status == 401
    answer.send_all("one")
    assert (await client.response()).status == 200
    assert (await look(sidecar, request_id, ring.bearer("alice"))).json()["state"] == "ended"
    assert (await look(sidecar, request_id, ring.bearer("bob"))).status == 404


async def test_operator_looks_at_and_cancels_any_request(
    sidecar: Running, operator: Client, script: AnswerScript
) -> None:
    first = await busy(sidecar, script)
    client, request_id = await sidecar.client(), new_id()
    secret = ("Authorization", "Bearer sk-of-the-client")
    client.start(CHAT, [named(request_id), secret], stream=False)
    await eventually(lambda: sidecar.queued)
    path = f"/v1/requests/{request_id}"
    found = await operator.get(path)
    assert found.json()["state"] == "queued"
    assert b"sk-of" not in found.body
    assert found.header("x-measurement-type") == "batched_online"
    assert (await operator.request("DELETE", path)).status == 204
    assert_cancelled(await client.response())
    assert (await operator.request("DELETE", path)).status == 204, "it may be repeated"
    assert (await operator.get(path)).json()["state"] == "ended"
    nothing = await operator.request("DELETE", f"/v1/requests/{new_id()}")
    assert (nothing.status, nothing.error["code"]) == (404, "not_found")
    assert (await operator.get(f"/v1/requests/{new_id()}")).status == 404
    refused = await operator.request("POST", path)
    assert (refused.status, refused.header("allow")) == (405, "GET, HEAD, DELETE")
    await free(script, first)
