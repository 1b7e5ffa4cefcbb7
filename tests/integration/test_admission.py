"""Which requests get a slot or wait, and what the engine and others learn of it.

The bound of interactive sequences, from what an engine reports to what is admitted. A lease stays
out until the engine has done with it, and comes back exactly once.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.integration.client import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Client, Response
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import STEP_TIME, Engine, ScriptedEngine
from tests.integration.scripts import endless
from tests.integration.wire import Answer
from vllm_plugin.contracts.profile import ServiceClass


async def test_never_more_at_once_than_slots_and_all_are_used(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    dice = random.Random(3)

    async def work(answer: Answer) -> None:
        await asyncio.sleep(dice.random() * 0.004)
        answer.json({})

    engine.answer = work

    async def user(number: int) -> None:
        client = await sidecar.client()
        for _ in range(8):
            cost = dice.choice((1, 1, 1, 2, 4))
            if cost == 2 and number % 2:
                response = await client.post(COMPLETIONS, prompt=["a", "b"])
            else:
                response = await client.post(CHAT, n=cost)
            assert response.status == 200

    await asyncio.gather(*(user(number) for number in range(24)))
    assert engine.peak == engine.slots
    assert len(engine.generating) == 24 * 8
    await sidecar.idle()


async def test_foreign_traffic_takes_room_and_gives_it_back(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    around = [await Client.connect(engine.port) for _ in range(3)]
    for client in around:
        client.start(stream=False)
    await eventually(lambda: sidecar.ledger.foreign == 3)
    document = await sidecar.capabilities()
    assert (document["foreign"], document["slots_free"]) == (3, 1)
    waiting = await started(sidecar, n=2)
    await eventually(lambda: sidecar.queued == 1)
    await asyncio.sleep(0.05)
    assert len(held.waiting) == 3
    held.release()
    await eventually(lambda: len(held.waiting) == 3)
    assert sidecar.ledger.leased == 2
    held.release_all()
    assert (await waiting.response()).status == 200
    for client in around:
        await client.close()
    await eventually(lambda: sidecar.ledger.foreign == 0)


def assert_try_later(response: Response, path: str, label: str, code: str) -> None:
    """A 429 with everything that tells the client when to come back."""
    assert response.status == 429
    error = response.error
    wait_ms = error["retry_after_ms"]
    assert isinstance(wait_ms, int)
    assert wait_ms > 0
    assert response.header("retry-after-ms") == str(wait_ms)
    assert response.header("x-backoff-ms") == str(wait_ms)
    assert response.header("retry-after") == str(max(1, -(-wait_ms // 1000)))
    assert error["retriable"] is True
    assert error["policy_label"] == label
    assert error["code"] == code
    assert error["type"] == "rate_limit_error"
    assert error["message"]
    assert response.json().get("type") == ("error" if path == MESSAGES else None)
    assert response.header("content-type") == "application/json"
    assert response.header("x-measurement-type") == "batched_online"
    assert response.header("x-orch-request-id")
    assert (response.header("server-timing") or "").startswith("queue;dur=")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
async def test_full_queue_refuses_at_once(
    engine: ScriptedEngine, start: Start, held: Held, path: str
) -> None:
    running = await start(queue_capacity=2)
    busy = [await started(running) for _ in range(4)]
    await eventually(lambda: len(held.waiting) == 4)
    queued = [await started(running) for _ in range(2)]
    await eventually(lambda: running.queued == 2)
    client = await running.client()
    assert_try_later(await client.post(path), path, "reject", "ADMISSION_REJECT")
    held.release_all()
    for one in busy:
        assert (await one.response()).status == 200
    await eventually(lambda: len(held.waiting) == 2)
    held.release_all()
    for one in queued:
        assert (await one.response()).status == 200
    later = asyncio.ensure_future(client.post(path))
    await eventually(lambda: held.waiting)
    held.release_all()
    assert (await later).status == 200
    assert len(engine.generating) == 7


SLOTS = 64


@pytest.fixture
async def large(another: Engine) -> ScriptedEngine:
    return await another(slots=SLOTS)


@pytest.fixture
async def bounded(large: ScriptedEngine, start: Start) -> Running:
    """64 slots, steps of 10 ms and one more for each sequence, and an SLO of 60 ms per token."""
    sidecar = await start(engine_url=large.url)
    tpot(sidecar, 60.0)
    return sidecar


def tpot(sidecar: Running, ms: float) -> None:
    """Reloads the rules with another SLO."""
    gate = sidecar.pool.gate
    assert gate.controller.rules.interactive is not None
    changed = gate.controller.rules.interactive.model_copy(update={"tpot_p95_ms": ms})
    gate.reload(gate.controller.rules.model_copy(update={"interactive": changed}))


def bound(sidecar: Running) -> int:
    return sidecar.pool.status().admission.limits.batch(ServiceClass.INTERACTIVE)


async def test_bound_follows_the_report_the_slo_the_traffic_and_a_restart(
    large: ScriptedEngine, bounded: Running
) -> None:
    assert bound(bounded) == 8, "nothing is known"
    large.report(batch_seen=8)
    await eventually(lambda: bound(bounded) == 16)
    large.report(step_time=STEP_TIME, batch_seen=64)
    await eventually(lambda: bound(bounded) == 50)
    tpot(bounded, 30.0)
    assert bound(bounded) == 20, "at once"
    large.report(step_time=STEP_TIME | {"traffic": 1.5})
    await eventually(lambda: bound(bounded) == 10)
    large.report(step_time=STEP_TIME | {"traffic": 1.0})
    await eventually(lambda: bound(bounded) == 20)
    large.state_fields = {}
    await large.restart()
    await eventually(lambda: bound(bounded) == 8)


async def test_end_that_is_missing_from_the_stream_is_asked_for(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    engine.faults.reports_ended = False
    engine.scripts.append(endless)
    client = await sidecar.client()
    client.start(CHAT, n=4)
    await client.seen(b"data: more\n\n")
    await client.close()
    waiting = await started(sidecar)
    assert (await waiting.response()).status == 200
    assert engine.revoked == [engine.generating[0].lease]


async def test_lease_that_the_engine_still_reports_is_not_given_back(
    quick: None, engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    engine.faults.reports_ended = False
    engine.faults.holds_aborted = asyncio.Event()
    client = await started(sidecar, n=4)
    await eventually(lambda: held.waiting)
    await client.close()
    waiting = await started(sidecar)
    await eventually(lambda: len(engine.revoked) >= 2)  # asked, and asked again
    assert (sidecar.ledger.leased, sidecar.queued) == (4, 1)
    engine.faults.holds_aborted.set()
    await eventually(lambda: held.waiting)
    held.release()
    assert (await waiting.response()).status == 200


@pytest.mark.parametrize("answer", [b"<html>", None], ids=["no JSON", "no HTTP"])
async def test_no_log_line_has_a_whole_lease(
    quick: None,
    engine: ScriptedEngine,
    sidecar: Running,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    answer: bytes | None,
) -> None:
    engine.faults.reports_ended = False
    engine.scripts.append(endless)

    def revoke(to: Answer) -> None:
        engine.revoked.append("asked")
        if answer is None:
            to.write(b"nonsense\r\n\r\n")
            return
        to.head(200, [("content-length", str(len(answer)))], chunked=False)
        to.write(answer)

    with monkeypatch.context() as patched:
        patched.setattr(engine, "_revoke", revoke)
        client = await sidecar.client()
        client.start()
        await client.seen(b"data: more\n\n")
        await client.close()
        await eventually(lambda: "the engine's answer is invalid" in caplog.text)
    lease = engine.generating[0].lease
    assert lease is not None
    assert f"lease {lease[:24]}: the engine's answer is invalid" in caplog.text
    assert lease not in caplog.text
    await eventually(lambda: not sidecar.ledger.leased)


async def test_leases_abandoned_while_the_stream_was_broken_are_asked_for_when_it_is_back(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    client = await started(sidecar, n=4)
    await eventually(lambda: held.waiting)
    engine.faults.stream_status = 500
    for wire in list(engine.wires):
        if wire.streams_state:
            wire.reset()
    await eventually(lambda: sidecar.sidecar.state == "stale")
    await client.close()  # its end is reported to nobody
    await eventually(lambda: not engine.present)
    assert sidecar.ledger.leased == 4
    engine.faults.stream_status = 200
    await eventually(lambda: not sidecar.ledger.leased)
    assert len(engine.revoked) == 1


async def test_slots_of_a_request_that_the_engine_answers_4xx_go_to_those_that_wait(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    """It has read the request, and rejects what is in it."""
    n, status = 1, 422
    entered, go = asyncio.Event(), asyncio.Event()

    async def rejects(answer: Answer) -> None:
        entered.set()
        await go.wait()
        answer.json({"error": {"message": "too long", "type": "BadRequestError"}}, status)

    engine.scripts.append(rejects)
    bad = await started(sidecar, n=n)
    await entered.wait()
    rest = [await started(sidecar, n=4, seed=seed) for seed in range(3)]
    await eventually(lambda: sidecar.queued == len(rest))
    assert (sidecar.ledger.leased, engine.present) == (n, n)
    go.set()
    assert (await bad.response()).status == status
    assert [(await client.response()).status for client in rest] == [200] * len(rest)
    assert engine.revoked == []
    assert engine.peak == sidecar.ledger.slots_total == 4
    assert sidecar.ledger.lease_count == engine.present == sidecar.ledger.violations == 0
