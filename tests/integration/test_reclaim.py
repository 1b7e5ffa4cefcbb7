"""A bulk request that no client has seen a byte of gives its slots to an interactive one.

Idle requests run in free slots, and start again when others needed theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.integration.client import CHAT, Client, Response
from tests.integration.held import Held, started
from tests.integration.keyed import KeyRing
from tests.integration.running import Running, Start, eventually, total
from tests.integration.scripted_engine import STEP_TIME, ScriptedEngine
from tests.integration.scripts import endless
from tests.integration.tiers import empty
from vllm_plugin.contracts.lease_protocol import API_VERSION
from vllm_plugin.contracts.profile import ServiceClass

BULK = [("X-Orch-Class", "bulk")]


async def measured(engine: ScriptedEngine, sidecar: Running) -> None:
    """Now it can be predicted that a request misses the SLO of 10 s."""
    engine.report(step_time=STEP_TIME)
    await eventually(lambda: sidecar.pool.status().admission.limits.measured)


async def test_it_is_aborted_queued_again_and_its_client_sees_one_answer(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    await measured(engine, sidecar)
    bulk = [await started(sidecar, headers=BULK, seed=n, max_tokens=1900) for n in range(4)]
    await eventually(lambda: len(held.waiting) == 4)
    urgent = await started(sidecar, seed=9, max_tokens=5)
    await eventually(lambda: len(engine.generating) == 5)
    assert sidecar.queued == 1, "the one that gave its slot"
    assert engine.generating[4].json()["seed"] == 9
    await eventually(lambda: len(held.waiting) == 4)
    held.release_all()
    assert (await urgent.response()).json() == {"seed": 9}
    await eventually(lambda: held.waiting)
    held.release_all()
    for seed, client in enumerate(bulk):
        response = await client.response()
        assert (response.status, response.json()) == (200, {"seed": seed})
    await sidecar.idle()
    metrics = await sidecar.metrics()
    assert total(metrics, "orch_reclaims_total", pool="cloud") == 1
    assert metrics['orch_oversubscription_violations_total{pool="cloud"}'] == 0
    assert sidecar.pool.gate.orphans == 0


async def test_a_stream_that_has_begun_is_left_alone(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    await measured(engine, sidecar)
    engine.scripts.append(endless)
    client = await sidecar.client()
    client.start(CHAT, BULK, n=4, max_tokens=1900)
    await client.seen(b"data: more\n\n")
    refused = await (await sidecar.client()).post(CHAT, max_tokens=5)
    assert (refused.status, refused.error["code"]) == (429, "ADMISSION_SLO")
    assert sidecar.ledger.leased == 4
    assert not sidecar.ledger.closing()
    await client.close()
    await sidecar.idle()


Headers = Sequence[tuple[str, str]]


async def reclaimed(
    engine: ScriptedEngine,
    sidecar: Running,
    held: Held,
    *last: Client,
    headers: Headers = (),
    to: Running | None = None,
    **body: Any,
) -> tuple[list[Client], Client]:
    """Four bulk requests and an urgent one, for which the last of them has been aborted; the engine
    keeps that until `holds_aborted` is set. `last`: already sent, in place of the last one."""
    engine.faults.holds_aborted = asyncio.Event()
    engine.report(step_time=STEP_TIME)
    await eventually(lambda: sidecar.pool.status().admission.limits.measured)
    clients = []
    for seed in range(4 - bool(last)):
        given = [*BULK, *headers]
        clients.append(
            await started(to or sidecar, headers=given, **{"seed": seed, "max_tokens": 1900} | body)
        )
        await eventually(lambda: len(held.waiting) == len(clients))
    urgent = await started(sidecar, headers=headers, seed=9, max_tokens=5)
    await eventually(lambda: sidecar.queued == 2)
    return clients, urgent


async def served(held: Held, *clients: Client) -> list[Any]:
    """Lets the engine answer all that come. Returns the answers."""
    answers = [asyncio.ensure_future(client.response()) for client in clients]
    while not all(answer.done() for answer in answers):
        held.release_all()
        await asyncio.sleep(0.005)
    return [answer.result() for answer in answers]


def confirm(engine: ScriptedEngine) -> None:
    assert engine.faults.holds_aborted is not None
    engine.faults.holds_aborted.set()


@pytest.mark.parametrize("reports_end", [True, False])
async def test_an_engine_that_confirms_late_loses_no_slot(
    engine: ScriptedEngine, quick: None, start: Start, held: Held, reports_end: bool
) -> None:
    """Without an event the sidecar asks for the ends that it misses."""
    sidecar = await start()
    engine.faults.reports_ended = reports_end
    clients, urgent = await reclaimed(engine, sidecar, held)
    confirm(engine)
    answers = await served(held, *clients, urgent)
    assert [answer.json()["seed"] for answer in answers] == [0, 1, 2, 3, 9]
    engine.faults.reports_ended = True
    await sidecar.idle()
    assert sidecar.ledger.lease_count == 0


async def test_its_key_pays_once(
    engine: ScriptedEngine, start: Start, held: Held, tmp_path: Path
) -> None:
    ring = KeyRing(tmp_path)
    ring.add("frugal", requests_per_minute=6)
    sidecar = await start(api_keys_file=ring.path)
    frugal = [ring.bearer("frugal")]
    clients, urgent = await reclaimed(engine, sidecar, held, headers=frugal)
    [share] = sidecar.pool.queues.line(ServiceClass.BULK).shares.values()
    confirm(engine)
    answers = await served(held, *clients, urgent)
    assert [answer.status for answer in answers] == [200] * 5
    last = await started(sidecar, headers=frugal, seed=6)
    [answer] = await served(held, last)
    assert answer.status == 200, "the sixth request of its budget"
    await sidecar.idle()
    assert (share.running, share.running_tokens, len(share.queue)) == (0, 0, 0)


async def test_all_clients_of_a_shared_generation_get_the_second_attempt(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    same = {"seed": 3, "max_tokens": 1900, "temperature": 0}
    clients, urgent = await reclaimed(engine, sidecar, held, temperature=0)
    joined = await started(sidecar, headers=BULK, **same)
    await eventually(lambda: len(sidecar.connections) == 6)
    leaves = await started(sidecar, headers=BULK, **same)
    await leaves.close()
    confirm(engine)
    answers = await served(held, *clients, urgent, joined)
    assert [answer.json()["seed"] for answer in answers] == [0, 1, 2, 3, 9, 3]
    assert len(engine.generating) == 6, "one was given twice"
    await sidecar.idle()


async def test_a_request_of_a_parent_sidecar_keeps_its_one_lease_there(
    engine: ScriptedEngine, parent_leases: Running, lower: Running, held: Held
) -> None:
    """The urgent request comes from elsewhere: the parent knows nothing of the abort."""
    clients, urgent = await reclaimed(engine, lower, held, to=parent_leases)
    assert parent_leases.ledger.leased == 4
    confirm(engine)
    answers = await served(held, *clients, urgent)
    assert [answer.json()["seed"] for answer in answers] == [0, 1, 2, 3, 9]
    await empty(parent_leases, lower)


async def test_a_parent_takes_the_slots_of_a_request_that_waits_below(
    engine: ScriptedEngine, parent_leases: Running, lower: Running, held: Held
) -> None:
    clients, urgent = await reclaimed(engine, parent_leases, held)
    confirm(engine)
    answers = await served(held, *clients, urgent)
    assert [answer.json()["seed"] for answer in answers] == [0, 1, 2, 3, 9]
    assert parent_leases.pool.status().admission.reclaimed == 1
    await empty(parent_leases, lower)


async def test_its_client_sees_one_request(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    """Whatever number of attempts it took."""
    named = [("X-Request-Id", "mine")]
    clients, urgent = await reclaimed(engine, sidecar, held, headers=named)
    await asyncio.sleep(0.05)
    confirm(engine)
    answers = await served(held, *clients, urgent)
    of_it = [each for each in engine.generating if each.json()["seed"] == 3]
    assert [each.header("x-request-id") for each in of_it] == ["mine", "mine"]
    leases = {each.header("x-orch-lease") for each in of_it}
    assert len(leases) == 2, "each attempt has its own"
    assert answers[3].header("x-request-id") == "mine"
    timing = (answers[3].header("server-timing") or "").split(",")[0]
    assert float(timing.split("=")[1]) >= 50
    metrics = await sidecar.metrics()
    ended = {"outcome": "ok", "route": "/v1/chat/completions", "status": 200}
    assert total(metrics, "orch_requests_total", **ended) == 5
    assert total(metrics, "orch_reclaims_total", pool="cloud") == 1


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
