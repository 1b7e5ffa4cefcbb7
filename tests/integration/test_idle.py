"""Idle requests over HTTP: they run in free slots, and start again when others needed theirs."""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.client import CHAT, Client, Response
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, eventually, total
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.scripts import endless
from tests.integration.tiers import empty
from vllm_plugin.contracts.lease_protocol import API_VERSION

IDLE = [("X-Orch-Class", "idle")]


async def released(held: Held, *clients: Client) -> list[Response]:
    """The answers of all, each as soon as the engine has it, again and again."""
    answering = asyncio.gather(*(client.response() for client in clients))

    def answered() -> bool:
        held.release_all()
        return answering.done()

    await eventually(answered)
    return list(await answering)


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
    found = [each.json() for each in await released(held, *rows)]
    assert found == [{"seed": seed} for seed in range(4)]
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


async def test_a_long_stream_is_not_kept_in_the_memory(
    engine: ScriptedEngine, sidecar: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orch_sidecar.proxy.engine_response.MAX_HELD_BYTES", 1000)
    engine.scripts.append(endless)
    row = await sidecar.client()
    row.start(CHAT, IDLE, n=4, max_tokens=9)
    await row.seen(b"data: more")
    urgent = await started(sidecar, max_tokens=5)
    await eventually(lambda: sidecar.queued == 1)
    assert len(engine.generating) == 1, "it is cut no more"
    await row.close()
    assert (await urgent.response()).status == 200


async def test_rows_of_one_sidecar_make_room_for_requests_of_another_at_the_same_engine(
    engine: ScriptedEngine, start: Start, held: Held
) -> None:
    first, second = [await start() for _ in range(2)]
    for each in (first, second):
        await eventually(lambda each=each: each.pool.gate.offers.sidecars == 2)  # type: ignore[misc]
    rows = [await started(first, headers=IDLE, seed=n) for n in range(4)]
    await eventually(lambda: len(held.waiting) == 4)
    urgent = await started(second, seed=9)
    await eventually(lambda: any(each.json()["seed"] == 9 for each in engine.generating))
    assert first.pool.admission.reclaim.cut >= 1
    assert [each.status for each in await released(held, urgent, *rows)] == [200] * 5
    await empty(first, second)


async def test_rows_of_a_child_make_room_for_requests_of_its_parent(
    parent_leases: Running, lower: Running, engine: ScriptedEngine, held: Held
) -> None:
    rows = [await started(lower, headers=IDLE, seed=n) for n in range(4)]
    await eventually(lambda: len(held.waiting) == 4)
    urgent = await started(parent_leases, seed=9)
    await eventually(lambda: any(each.json()["seed"] == 9 for each in engine.generating))
    assert [each.status for each in await released(held, urgent, *rows)] == [200] * 5
    await empty(parent_leases, lower)


@pytest.mark.parametrize(("version", "sent"), [("1.3.0", "bulk"), (API_VERSION, "idle")])
async def test_a_child_that_does_not_know_the_class_gets_it_as_bulk(
    version: str, sent: str, start: Start, engine: ScriptedEngine
) -> None:
    engine.report(api_version=version)
    pool = {"name": "lower", "url": engine.url, "profile": "cloud", "tier": True}
    parent = await start(pools=[pool])
    await eventually(lambda: (parent.pool.watcher.document or {}).get("api_version") == version)
    assert (await (await parent.client()).post(CHAT, IDLE)).status == 200
    assert engine.generating[0].header("x-orch-class") == sent
