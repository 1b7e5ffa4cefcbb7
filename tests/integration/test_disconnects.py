"""Clients that leave, queued or served: their slots come back, and nothing of them stays."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import pytest
from aiohttp.web import BaseRequest

from orch_sidecar.wire.client_request import ClientRequest
from tests.integration.answers import EVENT_STREAM
from tests.integration.client import CHAT, Client, body_of
from tests.integration.held import Held, started
from tests.integration.running import Running, eventually, total
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.scripts import endless
from tests.integration.wire import Answer


async def leave(client: Client, *, reset: bool) -> None:
    if reset:
        client.reset()
    await client.close()


async def test_client_that_leaves_the_queue_frees_its_place_and_asks_nothing_of_the_engine(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    busy = await started(sidecar, n=4)
    await eventually(lambda: held.waiting)
    gone = await started(sidecar, seed=1, n=4)
    await eventually(lambda: sidecar.queued == 1)
    stays = await started(sidecar, seed=2)
    await eventually(lambda: sidecar.queued == 2)
    await gone.close()
    await eventually(lambda: sidecar.queued == 1)
    held.release()
    await busy.response()
    await eventually(lambda: held.waiting)
    held.release()
    assert (await stays.response()).json() == {"seed": 2}
    assert [request.json().get("seed") for request in engine.generating] == [None, 2]
    assert engine.revoked == []


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
    try:
        client.send_request("POST", target, headers=[("Content-Length", str(len(body)))])
        client.send(body[: len(body) - missing])
        await eventually(lambda: any(each.request or each._close for each in sidecar.connections))
        await eventually(lambda: held.waiting or missing)
        await asyncio.sleep(0.02)  # it waits, for a body that does not come or for the engine
        await leave(client, reset=True)
        await eventually(lambda: not sidecar.connections)
        both = BaseRequest, ClientRequest
        await eventually(lambda: not any(isinstance(each, both) for each in gc.get_objects()))
    finally:
        gc.enable()
