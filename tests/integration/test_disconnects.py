"""Clients that leave, queued or served: their slots come back, and nothing of them stays.

Waits that end at once, and faults of the sidecar's own, cost no slot.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from typing import Any

import pytest
from aiohttp.web import BaseRequest

from orch_sidecar.wire.client_request import ClientRequest
from tests.integration.answers import EVENT_STREAM
from tests.integration.client import CHAT, Client, body_of
from tests.integration.held import Held, started
from tests.integration.impatient import faults, short_waits, short_work
from tests.integration.running import Running, Start, eventually, pools, total
from tests.integration.scripted_engine import Engine, ScriptedEngine
from tests.integration.scripts import endless
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
