"""Two tiers, and one of the parties ends: client, request, lower sidecar, engine."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.integration.answers import EVENT_STREAM
from tests.integration.client import AT_ONCE, CHAT, MESSAGES, Client
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.tiers import above, empty, tier
from tests.integration.wire import Answer
from tests.patience import HANG_S


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_leaves_frees_all_levels(
    parent_leases: Running, lower: Running, engine: ScriptedEngine, path: str, stream: bool
) -> None:
    async def endless(answer: Answer) -> None:
        if stream:
            answer.head(200, EVENT_STREAM)
        while True:
            if stream:
                answer.event({"x": 1})
            await asyncio.sleep(0.005)

    engine.answer = endless
    client = await parent_leases.client()
    client.start(path, stream=stream)
    await eventually(lambda: engine.present)
    if stream:
        await client.seen(b"data: ")
    assert (parent_leases.ledger.leased, lower.ledger.leased) == (1, 1)
    await client.close()
    await eventually(lambda: not engine.present)
    await empty(parent_leases, lower)


async def test_cancelling_above_frees_all_levels(
    parent_leases: Running, lower: Running, engine: ScriptedEngine, held: Held
) -> None:
    request_id = os.urandom(16).hex()
    client = await started(
        parent_leases, headers=[("X-Orch-Request-Id", request_id)], path=MESSAGES
    )
    await eventually(lambda: held.waiting)
    other = await parent_leases.client()
    path = f"/v1/requests/{request_id}/cancel"
    assert (await other.request("POST", path, None)).status == 204
    assert (await client.response()).status == 499
    # Below it has another name: ids are only for clients that may use them.
    assert (await (await lower.client()).request("POST", path, None)).status == 404
    await eventually(lambda: not held.waiting)
    await empty(parent_leases, lower)


async def test_lower_that_restarts_is_followed_again_and_nobody_is_lost(
    start: Start, engine: ScriptedEngine, held: Held
) -> None:
    """It rejects what it cannot finish as retriable."""
    first = await start()
    parent_leases = await start(pools=[tier(first)])
    client = await started(parent_leases, path=MESSAGES, seed=1)
    await eventually(lambda: held.waiting)
    waiting = await started(parent_leases, n=4, seed=2)
    await eventually(lambda: parent_leases.queued)
    await first.stop()
    await eventually(lambda: not held.waiting and parent_leases.queued == 2)
    await eventually(lambda: parent_leases.sidecar.state == "down")
    refused = await (await parent_leases.client()).post(MESSAGES, AT_ONCE)
    assert (refused.status, refused.error["code"]) == (503, "engine_down")
    second = await start(port=first.port)
    await parent_leases.ready()
    for one, seed in ((client, 1), (waiting, 2)):
        await eventually(lambda: held.waiting)
        held.release()
        assert (await one.response()).json() == {"seed": seed}
    assert len(engine.generating) == 3
    await empty(parent_leases, second)


async def test_lower_that_is_killed_fails_what_it_had_and_no_more(
    start: Start, lower: Running, engine: ScriptedEngine, held: Held
) -> None:
    parent_leases = await above(start, lower)
    client = await started(parent_leases, path=MESSAGES)
    await eventually(lambda: held.waiting)
    for connection in lower.connections:
        assert connection.transport is not None
        connection.transport.abort()
    response = await client.response()
    assert (response.status, response.error["code"]) == (502, "engine_failed")
    await parent_leases.ready()
    await eventually(lambda: not held.waiting)
    await empty(parent_leases, lower)
    again = await started(parent_leases, path=MESSAGES)
    await eventually(lambda: held.waiting)
    held.release()
    assert (await again.response()).status == 200


async def test_lower_that_drains_takes_nothing_new_and_finishes_what_it_has(
    parent_leases: Running, lower: Running, engine: ScriptedEngine, held: Held
) -> None:
    client = await started(parent_leases, path=MESSAGES)
    await eventually(lambda: held.waiting)
    admin = await Client.connect(lower.sidecar.admin_port)
    assert (await admin.request("POST", "/v1/pools/cloud/drain")).status == 200
    await eventually(lambda: parent_leases.sidecar.state == "draining")
    refused = await (await parent_leases.client()).post(MESSAGES, AT_ONCE)
    assert refused.status == 503
    assert refused.header("retry-after")
    ready = await (await parent_leases.client()).get("/readyz")
    assert (ready.status, ready.json()["state"]) == (200, "draining")
    held.release()
    assert (await client.response()).status == 200
    await empty(parent_leases, lower)
    assert (await admin.request("POST", "/v1/pools/cloud/resume")).status == 200
    await parent_leases.ready()
    again = await started(parent_leases, path=MESSAGES)
    await eventually(lambda: held.waiting)
    held.release()
    assert (await again.response()).status == 200
    await admin.close()


async def test_stopping_lower_informs_the_upper_while_it_drains(
    start: Start, engine: ScriptedEngine, held: Held
) -> None:
    lower = await start(drain_timeout_s=HANG_S)
    parent_leases = await above(start, lower)
    client = await started(parent_leases, path=MESSAGES)
    await eventually(lambda: held.waiting)
    stopping = asyncio.ensure_future(lower.stop())
    await eventually(lambda: parent_leases.sidecar.state == "draining")
    assert not stopping.done()
    held.release()
    assert (await client.response()).status == 200
    await asyncio.wait_for(stopping, HANG_S)  # the reader of its state does not hold it up
