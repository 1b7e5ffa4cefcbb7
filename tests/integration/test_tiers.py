"""A pool that is itself a sidecar: what it receives, and what becomes of requests that it rejects.

Sidecars in front of a sidecar in front of an engine: all of them real but the engine.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.answers import EVENT_STREAM
from tests.integration.client import AT_ONCE, CHAT, COMPLETIONS, MESSAGES, RESPONSES, Client
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, all_ready, eventually, pools
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.tiers import Streaming, above, empty, tier
from tests.integration.wire import Answer


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
@pytest.mark.parametrize("stream", [False, True])
async def test_answer_comes_through_both_as_it_is(
    parent_leases: Running, lower: Running, engine: ScriptedEngine, path: str, stream: bool
) -> None:
    direct = await (await lower.client()).post(path, stream=stream)
    response = await (await parent_leases.client()).post(path, stream=stream)
    assert response.status == 200
    # Where decodes are shared, each client has an id of its own in the answer.
    assert len(response.body) == len(direct.body)
    if path in (RESPONSES, MESSAGES):
        assert response.body == direct.body
    assert response.header("x-orch-request-id") != direct.header("x-orch-request-id")
    request = engine.generating[-1]
    assert (request.lease or "").startswith(lower.pool.gate.instance)
    assert [name for name, _ in request.fields if name.startswith("x-orch-")] == ["x-orch-lease"]
    await empty(parent_leases, lower)


async def test_upper_sees_the_slots_of_the_engine_and_what_others_hold_of_them(
    parent_leases: Running, lower: Running, engine: ScriptedEngine, held: Held
) -> None:
    mine = await started(parent_leases, n=1)
    theirs = await started(lower, n=2, seed=1)
    await eventually(lambda: len(held.waiting) == 2)
    await eventually(lambda: parent_leases.ledger.foreign == 2)
    entry = await parent_leases.capabilities()
    assert (entry["slots_total"], entry["leased"], entry["foreign"]) == (4, 1, 2)
    assert entry["slots_free"] == 1
    assert entry["models"] == ["tiny"]
    held.release_all()
    for client in (mine, theirs):
        assert (await client.response()).status == 200
    await eventually(lambda: parent_leases.ledger.foreign == 0)
    await empty(parent_leases, lower)


async def test_one_pool_of_several_below_is_named(
    start: Start, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    lower = await all_ready(await start(**pools(a=engine, b=b)))
    parent_leases = await start(pools=[tier(lower, below="b")])
    client = await parent_leases.client()
    for seed in range(3):
        assert (await client.post(seed=seed)).status == 200
    await client.request("POST", "/tokenize", {"model": "tiny", "prompt": "x"})
    assert (len(engine.received), len(b.generating)) == (0, 3)
    assert parent_leases.pool.watcher.document is not None
    assert parent_leases.pool.watcher.document["pool"] == "b"
    unnamed = await start(pools=[tier(lower)], wait=False)
    await eventually(lambda: unnamed.sidecar.state == "unusable")
    assert "several pools (a, b)" in unnamed.pool.watcher.message
    wrong = await start(pools=[tier(lower, below="c")], wait=False)
    await eventually(lambda: wrong.sidecar.state == "unusable")
    assert "there is no pool 'c'" in wrong.pool.watcher.message
    refused = await (await wrong.client()).post()
    assert refused.status == 503
    assert "there is no pool 'c'" in refused.error["message"]


async def test_requests_through_three_tiers_never_exceed_the_slots(
    start: Start, lower: Running, engine: ScriptedEngine
) -> None:
    engine.answer = Streaming()
    middle = await above(start, lower)
    top = await above(start, middle)
    clients = [await top.client() for _ in range(12)]
    for number, client in enumerate(clients):
        client.start(seed=number)
    for client in clients:
        assert (await client.response()).status == 200
    assert engine.peak <= 4
    await empty(top, middle, lower)


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


RETRY: Any = [("retry-after", "1"), ("retry-after-ms", "20")]
ENVELOPE = {"error": {"code": "ADMISSION_NO_QUEUE", "retriable": True, "retry_after_ms": 20}}


def turn_away(status: int = 429, body: Any = ENVELOPE, headers: Any = RETRY) -> Any:
    """A script: the sidecar below has no slot now."""

    async def script(answer: Answer) -> None:
        answer.json(body, status, headers)

    return script


@pytest.fixture
async def upper(start: Start, engine: ScriptedEngine) -> Running:
    """A sidecar above `engine`, which it takes for a sidecar."""
    return await start(
        pools=[{"name": "lower", "url": engine.url, "profile": "cloud", "tier": True}]
    )


async def test_directives_for_the_sidecar_below_are_ours(
    upper: Running, engine: ScriptedEngine
) -> None:
    client = await upper.client()
    await client.post(
        CHAT,
        [
            ("X-Orch-Class", "bulk"),
            ("X-Orch-Deadline-Ms", "60000"),
            ("X-Orch-Max-Wait-Ms", "50000"),
            ("X-Orch-No-Coalesce", "1"),
            ("X-Orch-Do-Not-Queue", "false"),
            ("X-Orch-Pool", "lower"),
            ("X-Orch-Lease", "forged"),
            ("X-Vllm-Priority", "-9"),
        ],
    )
    await client.post(CHAT)
    first, second = engine.generating
    assert first.header("x-orch-class") == "bulk"
    assert 59_000 <= int(first.header("x-orch-deadline-ms") or "") <= 60_000
    assert 49_000 <= int(first.header("x-orch-max-wait-ms") or "") <= 50_000
    assert first.header("x-orch-no-coalesce") == "true"
    assert (first.lease or "").startswith(upper.pool.gate.instance)
    headers = {name: value for name, value in second.fields if name.startswith("x-orch-")}
    assert set(headers) == {
        "x-orch-class",
        "x-orch-do-not-queue",
        "x-orch-lease",
        "x-orch-no-coalesce",
    }
    assert headers["x-orch-class"] == "interactive"
    for request in (first, second):
        assert request.header("x-orch-do-not-queue") == "true"
        assert request.header("x-orch-pool") is None
        assert request.header("x-vllm-priority") is None
        names = [name for name, _ in request.fields]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("script", [turn_away(), turn_away(503, body={"detail": "busy"})])
async def test_request_that_is_turned_away_goes_back_and_is_served(
    upper: Running, engine: ScriptedEngine, script: Any, path: str
) -> None:
    engine.scripts += [script, script]
    response = await (await upper.client()).post(path, seed=1)
    assert response.status == 200
    assert b"retriable" not in response.body
    assert response.header("x-orch-queue-position") == "0"
    assert response.header("retry-after") is None
    leases = [request.lease for request in engine.generating]
    assert len(set(leases)) == 3  # a lease is used once
    await upper.idle()
    assert upper.ledger.lease_count == 0


async def test_client_that_leaves_while_its_request_is_put_back_leaks_nothing(
    upper: Running, engine: ScriptedEngine
) -> None:
    engine.answer = turn_away()
    client = await started(upper)
    await eventually(lambda: len(engine.generating) > 1)
    await client.close()
    await eventually(lambda: not upper.queued)
    await upper.idle()
    assert upper.ledger.lease_count == 0
