"""Clients that leave, queued or served, and engines that fail.

Of the clients nothing stays, and their slots come back. An engine that makes no progress is given
nothing more until it does; of one that dies, requests it has not accepted keep their places.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from typing import Any

import pytest
from aiohttp.web import BaseRequest

from orch_sidecar.config.installation import build
from orch_sidecar.wire.client_request import ClientRequest
from tests.integration.answers import EVENT_STREAM
from tests.integration.client import AT_ONCE, CHAT, MESSAGES, Client, body_of
from tests.integration.held import Held, started
from tests.integration.impatient import faults, short_waits, short_work
from tests.integration.running import Running, Start, all_ready, eventually, pools, total
from tests.integration.scripted_engine import Engine, ScriptedEngine
from tests.integration.scripts import endless, silent
from tests.integration.wire import Answer


async def leave(client: Client, *, reset: bool) -> None:
    if reset:
        client.reset()
    await client.close()


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("streams", [False, True])
async def test_client_that_leaves_ends_the_engines_request_and_its_lease_waits_for_that_end(
    engine: ScriptedEngine, sidecar: Running, streams: bool, reset: bool
) -> None:
    """Before the first byte, and in the middle of a stream."""
    hold = Held()
    engine.scripts.append(endless if streams else hold)
    engine.faults.holds_aborted = asyncio.Event()
    client = await sidecar.client()
    client.start(CHAT, n=4)
    if streams:
        await client.seen(b"data: more\n\n")
    else:
        await eventually(lambda: hold.waiting)
    waiting = await started(sidecar)
    await eventually(lambda: sidecar.queued == 1)
    await leave(client, reset=reset)
    await eventually(sidecar.ledger.closing)
    assert engine.present == 4  # the engine still has it
    await asyncio.sleep(0.05)
    assert (sidecar.ledger.leased, sidecar.queued) == (4, 1)
    metrics = await sidecar.metrics()
    assert metrics['orch_leases_closing{pool="cloud"}'] == 1
    engine.faults.holds_aborted.set()
    assert (await waiting.response()).status == 200
    await sidecar.idle()
    assert engine.revoked == []  # the stream's word was enough


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("shared", [{}, {"temperature": 0}], ids=["alone", "coalescing"])
@pytest.mark.parametrize(("last", "outcome"), [("[DONE]", "ok"), ({}, "cancelled")])
async def test_client_that_leaves_with_the_last_event_has_its_answer(
    engine: ScriptedEngine,
    sidecar: Running,
    last: str | dict[str, str],
    outcome: str,
    shared: dict[str, Any],
    reset: bool,
) -> None:
    """The engine ends the body in a write of its own, which comes later."""

    async def ends_late(answer: Answer) -> None:
        answer.head(200, EVENT_STREAM)
        answer.event({"usage": {"prompt_tokens": 3, "completion_tokens": 2}})
        answer.event(last)
        await asyncio.Event().wait()

    engine.scripts.append(ends_late)
    client = await sidecar.client()
    client.start(CHAT, **shared)
    await client.seen(f"data: {last}\n\n".encode())
    await leave(client, reset=reset)
    await sidecar.idle()
    metrics = await sidecar.metrics()
    assert total(metrics, "orch_requests_total", outcome=outcome, route=CHAT) == 1
    generated = total(metrics, "orch_output_tokens_total")
    assert generated == (2 if outcome == "ok" else 0)


_REQUESTS = BaseRequest, ClientRequest


@pytest.mark.parametrize(
    ("target", "missing"),
    [(CHAT, 0), (CHAT, 5), ("/unknown", 5)],
    ids=["generating", "sending its body", "refused"],
)
async def test_nothing_of_a_request_is_left_to_the_garbage_collector(
    sidecar: Running, held: Held, target: str, missing: int
) -> None:
    """Its body may have megabytes, and the collector seldom runs."""
    body = json.dumps(body_of(CHAT)).encode()
    client = await sidecar.client()
    gc.collect()
    gc.disable()
    others = [each for each in gc.get_objects() if isinstance(each, _REQUESTS)]
    try:
        client.send_request("POST", target, headers=[("Content-Length", str(len(body)))])
        client.send(body[: len(body) - missing])
        await eventually(lambda: any(each.request or each._close for each in sidecar.connections))
        await eventually(lambda: held.waiting or missing)
        await asyncio.sleep(0.02)  # it waits, for a body that does not come or for the engine
        await leave(client, reset=True)
        await eventually(lambda: not sidecar.connections)
        await eventually(
            lambda: (
                not any(
                    isinstance(each, _REQUESTS) and each not in others for each in gc.get_objects()
                )
            )
        )
    finally:
        gc.enable()


SECONDS = 0.8
ENOUGH = 20  # faults
POOLS = [("cloud", 8), ("home", 1)]


async def front_of(
    profile: str, slots: int, another: Engine, start: Start
) -> tuple[Running, ScriptedEngine]:
    """A sidecar in front of an engine with a single pool."""
    engine = await another(slots=slots, profile=profile)
    engine.answer = short_work
    return await start(engine_url=engine.url, profile=profile), engine


@pytest.mark.parametrize(("profile", "slots"), POOLS)
async def test_clients_that_wait_for_milliseconds_leak_no_slot(
    profile: str, slots: int, another: Engine, start: Start
) -> None:
    running, engine = await front_of(profile, slots, another, start)
    statuses = await short_waits(running.port, 48, SECONDS)
    assert statuses[200]
    assert set(statuses) <= {200, 429}
    await running.idle()
    assert engine.present == 0
    assert running.pool.gate.orphans == 0


@pytest.mark.parametrize(("profile", "slots"), POOLS)
async def test_faults_between_core_gate_and_follower_leak_no_slot(
    profile: str, slots: int, another: Engine, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running, engine = await front_of(profile, slots, another, start)
    with caplog.at_level(logging.CRITICAL), faults(running, 0.02, seed=slots) as raised:
        statuses = await short_waits(running.port, 24, SECONDS)
        while raised.total() < ENOUGH or not statuses[200]:  # on a slow machine it takes longer
            statuses += await short_waits(running.port, 24, SECONDS)
    await running.ready()
    await running.idle()
    gate = running.pool.gate
    await eventually(lambda: not (gate.tickets or gate.waiting))
    assert engine.present == 0
    healthy = await short_waits(running.port, 4, 0.2)
    assert set(healthy) <= {200, 429}
    assert healthy[200]


async def test_a_fault_at_one_pool_leaks_no_slot_at_another(
    another: Engine, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = await another(), await another()
    a.answer = b.answer = short_work
    running = await start(**pools(a=a, b=b))
    with caplog.at_level(logging.CRITICAL), faults(running, 0.02, seed=1):
        await short_waits(running.port, 24, SECONDS)
    await running.ready()
    await running.idle()
    assert a.present == b.present == 0
    assert not running.sidecar.failed


async def test_engine_that_is_silent_is_a_504_and_its_lease_waits(
    quick: None, engine: ScriptedEngine, start: Start
) -> None:
    running = await start(engine_silence_s=0.2)
    engine.faults.holds_aborted = asyncio.Event()
    engine.scripts.append(silent)
    client = await running.client()
    response = await client.post()
    assert response.status == 504
    assert response.error["code"] == "engine_timeout"
    assert running.ledger.leased == 1
    engine.faults.holds_aborted.set()
    await running.idle()


async def test_stream_of_an_engine_that_hangs_ends_and_that_of_one_that_is_heard_of_does_not(
    quick: None,
    engine: ScriptedEngine,
    another: Engine,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both send nothing for as long; one of them also nothing of its state."""
    monkeypatch.setattr("orch_sidecar.pools.pool._HUNG_S", 0.3)
    monkeypatch.setattr("orch_sidecar.pools.engine_watcher.STALE_AFTER_S", 1.5)
    ended, b = asyncio.Event(), await another()

    async def stuck(answer: Answer) -> None:
        answer.head(200, EVENT_STREAM)
        answer.event("a")
        await ended.wait()
        answer.end()

    engine.answer = b.answer = stuck
    running = await all_ready(await start(**pools(a=engine, b=b)))
    hung, reading = [await running.client() for _ in range(2)]
    for client, name in ((hung, "a"), (reading, "b")):
        client.start(CHAT, [("X-Orch-Pool", name)])
    await eventually(lambda: len(engine.generating) == len(b.generating) == 1)
    engine.faults.mute, engine.faults.stream_status = True, 500
    response = await hung.response()
    assert response.body.startswith(b'data: a\n\ndata: {"error": ')
    assert b"engine_timeout" in response.body
    assert len(running.sidecar.watchdog.responses()) == 1, "the other one goes on"
    engine.faults.mute, engine.faults.stream_status = False, 200
    ended.set()
    assert (await reading.response()).body == b"data: a\n\n"
    await all_ready(running)
    await running.idle()


async def stalls(engine: ScriptedEngine, running: Running) -> None:
    engine.report(state="stalled")
    await eventually(lambda: running.sidecar.state == "stalled")


async def recovers(engine: ScriptedEngine, running: Running) -> None:
    engine.report(state="ready")
    await running.ready()


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_stall_makes_unready_and_refuses_until_it_is_over(
    sidecar: Running, engine: ScriptedEngine, held: Held, path: str
) -> None:
    stuck = await started(sidecar, seed=1)
    await eventually(lambda: held.waiting)
    await stalls(engine, sidecar)
    client = await sidecar.client()
    refused = await client.post(path, AT_ONCE)
    assert (refused.status, refused.error["code"]) == (503, "engine_stalled")
    assert "no progress" in refused.error["message"]
    assert refused.header("retry-after") == "1", "it stalls for the first time, and just began to"
    ready = await client.get("/readyz")
    assert (ready.status, ready.json()["state"]) == (503, "stalled")
    assert "no progress" in ready.json()["last_error"]
    health = (await client.get("/v1/pools/cloud/health")).json()
    assert (health["live"], health["ready"], health["state"]) == (True, False, "stalled")
    entry = await sidecar.capabilities()
    assert (entry["state"], entry["slots_free"]) == ("stalled", 0)
    assert (await sidecar.metrics())['orch_engine_state{pool="cloud",state="stalled"}'] == 1
    assert len(engine.generating) == 1
    await recovers(engine, sidecar)
    held.release()
    assert (await stuck.response()).json() == {"seed": 1}, "what was in it is not given up"
    assert (await client.get("/readyz")).status == 200
    again = await started(sidecar, seed=2)
    await eventually(lambda: held.waiting)
    held.release()
    assert (await again.response()).status == 200


@pytest.mark.usefixtures("quick")
async def test_leases_are_confirmed_while_it_is_stalled(
    engine: ScriptedEngine, start: Start, held: Held
) -> None:
    """Its API server answers; a client that gives up must not cost a slot for ever."""
    engine.faults.reports_ended = False
    running = await start()
    client = await started(running, path=MESSAGES)
    await eventually(lambda: held.waiting)
    await stalls(engine, running)
    await client.close()
    await eventually(lambda: engine.revoked)
    await running.idle()
    assert running.ledger.lease_count == 0
    assert running.sidecar.state == "stalled"
    await recovers(engine, running)


# A decode for one client, and one that others might share.
KINDS: list[dict[str, Any]] = [{}, {"temperature": 0}]


async def succeeded(engine: ScriptedEngine, held: Held) -> None:
    """The engine is gone, and its successor is there."""
    await engine.stop()
    held.waiting.clear()
    engine.faults.gone = False
    await engine.start()


@pytest.mark.parametrize("kind", KINDS)
async def test_request_queued_while_the_core_dies_is_served_by_the_successor(
    sidecar: Running, engine: ScriptedEngine, held: Held, kind: dict[str, Any]
) -> None:
    busy = await started(sidecar, n=4)
    await eventually(lambda: held.waiting)
    queued = [await started(sidecar, seed=seed, **kind) for seed in (1, 2)]
    await eventually(lambda: sidecar.queued == 2)
    engine.faults.gone = True
    held.release()  # its slots come free, and a queued request is sent to an engine that is going
    assert (await busy.response()).status == 200
    await eventually(lambda: len(engine.generating) > 1)
    await eventually(lambda: sidecar.queued == 2)
    await succeeded(engine, held)
    await eventually(lambda: len(held.waiting) == 2)
    held.release_all()
    for client, seed in zip(queued, (1, 2), strict=True):
        assert (await client.response()).json() == {"seed": seed}
    await sidecar.idle()


@pytest.mark.parametrize("kind", KINDS)
async def test_request_that_comes_while_the_core_dies_is_served_by_the_successor(
    sidecar: Running, engine: ScriptedEngine, held: Held, kind: dict[str, Any]
) -> None:
    engine.faults.gone = True
    client = await started(sidecar, seed=1, **kind)
    await eventually(lambda: engine.generating)
    await succeeded(engine, held)
    await eventually(lambda: held.waiting)
    held.release()
    assert (await client.response()).json() == {"seed": 1}
    await sidecar.idle()


async def test_queued_request_that_cannot_connect_waits_on(
    sidecar: Running, engine: ScriptedEngine, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the instant before the state stream tells that the engine is gone."""
    if build() == "compiled":
        pytest.skip("replaces a method of a compiled class")
    busy = await started(sidecar, n=4)
    await eventually(lambda: held.waiting)
    queued = await started(sidecar, seed=1)
    await eventually(lambda: sidecar.queued == 1)
    with monkeypatch.context() as patch:
        patch.setattr(sidecar.pool.connections, "take", lambda: None)
        patch.setattr(sidecar.pool.connections, "_port", 1)
        held.release()
        assert (await busy.response()).status == 200
        await asyncio.sleep(0.3)  # it is tried again and again
        await eventually(lambda: sidecar.queued == 1)
        assert len(engine.generating) == 1
    await eventually(lambda: held.waiting)
    held.release()
    assert (await queued.response()).json() == {"seed": 1}
    await sidecar.idle()
