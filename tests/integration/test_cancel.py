"""Cancelling a request by its id, from another connection, wherever the request is."""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.answers import EVENT_STREAM
from tests.integration.cancelling import assert_cancelled, cancel, named, new_id
from tests.integration.client import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.integration.held import Held, started
from tests.integration.running import Running, eventually, total
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.scripts import silent
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
