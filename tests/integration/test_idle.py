"""Idle requests over HTTP: they run in free slots, and start again when others needed theirs."""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.client import CHAT
from tests.integration.held import Held, started
from tests.integration.running import Running, eventually, total
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.scripts import endless

IDLE = [("X-Orch-Class", "idle")]


async def test_one_is_cut_for_an_interactive_request_and_answers_as_if_nothing_had_been(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    rows = [await started(sidecar, headers=IDLE, seed=n) for n in range(4)]
    await eventually(lambda: len(held.waiting) == 4)
    assert sidecar.ledger.idle == 4
    urgent = await started(sidecar, seed=9)
    await eventually(lambda: len(engine.generating) == 5)
    assert engine.generating[4].json()["seed"] == 9, "it waited for nobody's end"
    assert sidecar.queued >= 1, "one that gave its slot"
    held.release_all()
    assert (await urgent.response()).json() == {"seed": 9}
    answering = asyncio.gather(*(client.response() for client in rows))

    def answered() -> bool:
        held.release_all()
        return answering.done()

    await eventually(answered)
    found = [(response.status, response.json()) for response in await answering]
    assert found == [(200, {"seed": seed}) for seed in range(4)]
    await sidecar.idle()
    metrics = await sidecar.metrics()
    cuts = total(metrics, "orch_idle_cuts_total", pool="cloud")
    assert cuts >= 1
    assert len(engine.generating) == 5 + cuts
    assert metrics['orch_oversubscription_violations_total{pool="cloud"}'] == 0


async def test_engine_is_told_that_it_is_bulk_and_behind_all_others(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    client = await started(sidecar, headers=IDLE)
    await eventually(lambda: held.waiting)
    request = engine.generating[0]
    assert (request.header("x-orch-class"), request.header("x-vllm-priority")) == ("bulk", "2")
    held.release_all()
    assert (await client.response()).status == 200


async def test_a_stream_is_held_until_it_is_complete_so_that_it_can_be_cut(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    engine.scripts.append(endless)
    row = await sidecar.client()
    row.start(CHAT, IDLE, n=4, max_tokens=9)
    await eventually(lambda: sidecar.ledger.idle == 4 and engine.generating)
    urgent = await (await sidecar.client()).post(CHAT, max_tokens=5)
    assert urgent.status == 200
    answer = await row.response()
    assert answer.status == 200
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert b"data: more" not in answer.body, "nothing of the attempt that was cut"
    assert len(engine.generating) == 3
    await sidecar.idle()


async def test_its_client_can_leave_while_it_is_cut(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    engine.faults.holds_aborted = asyncio.Event()
    rows = [await started(sidecar, headers=IDLE, seed=n) for n in range(4)]
    await eventually(lambda: len(held.waiting) == 4)
    urgent = await started(sidecar, seed=9)
    await eventually(lambda: sidecar.queued >= 2)
    for client in rows:
        await client.close()
    await eventually(lambda: sidecar.queued == 1)
    engine.faults.holds_aborted.set()
    await eventually(lambda: held.waiting)
    held.release_all()
    assert (await urgent.response()).json() == {"seed": 9}
    await sidecar.idle()


@pytest.mark.parametrize("given", ["IDLE", " idle "])
async def test_class_is_read_as_the_others_are(given: str, sidecar: Running) -> None:
    client = await sidecar.client()
    assert (await client.post(CHAT, [("X-Orch-Class", given)], max_tokens=1)).status == 200
    await sidecar.idle()
    assert sidecar.ledger.granted[sidecar.pool.admission.status(0.0).classes[-1]] == 1
