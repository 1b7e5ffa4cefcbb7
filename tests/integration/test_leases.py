"""A lease stays out until the engine has done with it, and comes back exactly once."""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.client import CHAT
from tests.integration.held import Held, started
from tests.integration.running import Running, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.scripts import endless
from tests.integration.wire import Answer


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
