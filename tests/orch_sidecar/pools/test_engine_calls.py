"""What an engine is told of the claims of this sidecar, and asked about its leases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any
from unittest.mock import MagicMock

import aiohttp
import pytest
from aiohttp import web

from orch_sidecar.admission.gate import Gate
from orch_sidecar.admission.types import AdmissionRequest
from orch_sidecar.pools import engine_calls
from orch_sidecar.pools.engine_calls import ClaimSender, LeaseReconciler
from tests.orch_sidecar.admission.examples import bulk, interactive, report
from tests.orch_sidecar.admission.gates import (
    Outcome,
    gate_of,
    lease_at_once,
    lease_of,
    queued,
)
from tests.patience import HANG_S
from vllm_plugin.contracts.lease_protocol import Claim, ClaimCall, parse_claim

SLOTS = 4


class Recorder:
    """An engine that records claims, and answers when it may."""

    def __init__(self) -> None:
        self.status = 204
        self.bodies: list[ClaimCall] = []
        self.calls: list[tuple[str, Claim | None]] = []  # path, claim
        self.answers = asyncio.Event()
        self.answers.set()
        self.at_once = self.most_at_once = 0

    async def handle(self, http: web.BaseRequest) -> web.Response:
        assert http.method == "PUT"
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.bodies.append(parse_claim(await http.read(), SLOTS))
        self.calls.append((http.path, self.bodies[-1].claim))
        assert http.headers["Authorization"] == "Bearer key"
        await self.answers.wait()
        self.at_once -= 1
        return web.Response(status=self.status)

    @property
    def claims(self) -> list[Claim | None]:
        return [claim for _, claim in self.calls]


def fill(gate: Gate, sidecars: int = 2) -> None:
    """Other sidecars have all slots."""
    gate.engine_reports(report(SLOTS, foreign=SLOTS, sidecars=sidecars))


@pytest.fixture
async def engine() -> Recorder:
    return Recorder()


@pytest.fixture
async def gate() -> Gate:
    """The gate of a sidecar that shares a full engine with another one."""
    made = gate_of(SLOTS)
    made.engine_reports(report(SLOTS, sidecars=2))
    return made


@pytest.fixture
async def sender(engine: Recorder, gate: Gate) -> AsyncIterator[ClaimSender]:
    server = web.Server(engine.handle)
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with aiohttp.ClientSession() as session:
        sender = ClaimSender(session, url, {"Authorization": "Bearer key"}, gate)
        task = asyncio.create_task(sender.run())
        yield sender
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        engine.answers.set()
        listener.close()
        await server.shutdown(0.05)


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(HANG_S):
        while not condition():  # noqa: ASYNC110 (a server of aiohttp sets no event)
            await asyncio.sleep(0.002)


async def claimed(
    engine: Recorder, gate: Gate, request: AdmissionRequest | None = None
) -> asyncio.Task[Outcome]:
    """Queues a request at the full engine; returns when its claim was sent."""
    fill(gate)
    waiting = await queued(gate, request)
    await eventually(lambda: len(engine.calls) == 1)
    return waiting


async def settled(engine: Recorder) -> None:
    """Returns when every call that was under way has been answered, and what follows was sent."""
    before = -1
    while before != len(engine.calls):
        before = len(engine.calls)
        await asyncio.sleep(0.05)


async def cancel(*tasks: asyncio.Task[Outcome]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_request_that_waits_for_slots_is_claimed_and_withdrawn_when_it_leaves(
    engine: Recorder, gate: Gate, sender: ClaimSender
) -> None:
    fill(gate)
    waiting = await queued(gate, bulk(2))
    await eventually(lambda: engine.calls)
    assert engine.calls == [
        (f"/v1/capabilities/claims/{gate.instance}", Claim(2, urgent=False)),
    ]
    await cancel(waiting)
    await eventually(lambda: len(engine.calls) == 2)
    assert engine.claims[1] is None
    await settled(engine)
    assert len(engine.calls) == 2


async def test_nothing_is_sent_while_nobody_else_is_there(
    engine: Recorder, gate: Gate, sender: ClaimSender
) -> None:
    fill(gate, sidecars=1)
    waiting = await queued(gate)
    await settled(engine)
    assert engine.calls == []
    fill(gate)
    await eventually(lambda: engine.claims == [Claim(1, urgent=True)])
    fill(gate, sidecars=1)
    await eventually(lambda: len(engine.calls) == 2)
    assert engine.claims[1] is None
    await cancel(waiting)


async def test_one_call_at_a_time_and_the_last_claim_is_sent_last(
    engine: Recorder, gate: Gate, sender: ClaimSender
) -> None:
    engine.answers.clear()
    first = await claimed(engine, gate, bulk(1))
    second = await queued(gate, interactive(2))
    third = await queued(gate, interactive(3))
    await cancel(second)
    await asyncio.sleep(0.02)
    assert engine.claims == [Claim(1, urgent=False)]
    engine.answers.set()
    await eventually(lambda: engine.claims[-1] == Claim(3, urgent=True))
    await settled(engine)
    assert engine.most_at_once == 1
    assert engine.claims == [Claim(1, urgent=False), Claim(3, urgent=True)], "what was in between"
    await cancel(first, third)


async def test_claim_is_sent_again_when_the_engine_reports_another_one(
    engine: Recorder, gate: Gate, sender: ClaimSender
) -> None:
    waiting = await claimed(engine, gate)
    await settled(engine)
    sender.reported(Claim(1, urgent=True), False, 0)
    await settled(engine)
    assert len(engine.calls) == 1, "it has what it should have"
    for reported in (None, Claim(2, urgent=True), Claim(1, urgent=False)):
        engine.calls.clear()
        sender.reported(reported, False, 0)
        await eventually(lambda: engine.claims == [Claim(1, urgent=True)])
        await settled(engine)
    await cancel(waiting)


async def test_claim_that_stands_is_sent_again_and_again(
    engine: Recorder, gate: Gate, sender: ClaimSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine may have ended it without a word that arrived."""
    monkeypatch.setattr(engine_calls, "REPEAT_S", 0.01)
    waiting = await claimed(engine, gate)
    await eventually(lambda: engine.claims[:3] == [Claim(1, urgent=True)] * 3)
    await cancel(waiting)


async def test_claim_that_the_engine_ended_while_it_was_being_sent_is_sent_again(
    engine: Recorder, gate: Gate, sender: ClaimSender
) -> None:
    """Its offer has expired before the answer to the claim arrived: the report may be older than
    the claim, and no other will come."""
    engine.answers.clear()
    waiting = await claimed(engine, gate)
    sender.reported(None, False, 0)
    engine.answers.set()
    await eventually(lambda: engine.claims == [Claim(1, urgent=True)] * 2)
    await cancel(waiting)


async def test_claim_that_the_engine_kept_of_a_rejection_is_withdrawn_when_nothing_waits(
    engine: Recorder, gate: Gate, sender: ClaimSender
) -> None:
    gate.engine_reports(report(SLOTS, sidecars=1))
    gate.offers.rejected()
    sender.reported(Claim(1, urgent=True), False, 0)
    await eventually(lambda: engine.claims == [None])
    assert not gate.offers.was_rejected, "the next request needs no offer"
    lease_at_once(gate)


async def test_slots_for_which_nothing_waits_are_given_back(
    engine: Recorder, gate: Gate, sender: ClaimSender
) -> None:
    waiting = await claimed(engine, gate)
    gate.engine_reports(report(SLOTS, sidecars=2, contended=True))
    gate.offered(3, 1)
    assert (await lease_of(waiting)).cost == 1
    await eventually(lambda: len(engine.bodies) == 2)
    assert engine.bodies[1] == ClaimCall(None, taken=1, unused=2, number=2)


@pytest.mark.parametrize("status", [404, 409, 500])
async def test_failure_is_logged_once_and_the_claim_sent_until_it_is_taken(
    engine: Recorder,
    gate: Gate,
    sender: ClaimSender,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    status: int,
) -> None:
    monkeypatch.setattr(engine_calls, "_RETRY_S", 0.01)
    engine.status = status
    fill(gate)
    waiting = await queued(gate)
    await eventually(lambda: len(engine.calls) >= 3)
    assert set(engine.claims) == {Claim(1, urgent=True)}
    engine.status = 204
    await settled(engine)
    sent = len(engine.calls)
    [record] = caplog.records
    assert "did not take a claim" in record.message
    assert str(status) in record.message
    assert gate.instance not in record.message
    engine.status = 500  # another failure is news
    await cancel(waiting)
    await eventually(lambda: len(engine.calls) >= sent + 2)
    assert len(caplog.records) == 2


async def test_invalid_answer_about_one_lease_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate: Any = MagicMock()
    gate.ledger.closing.return_value = ["a", "b", "c"]
    reconciler = LeaseReconciler(MagicMock(), "http://engine", {}, gate)

    async def has_ended(lease: str) -> bool:
        if lease == "a":
            raise ValueError("no JSON")
        return lease == "c"

    monkeypatch.setattr(reconciler, "_has_ended", has_ended)
    reconciler.stream_restarted()
    await reconciler.reconcile(engine_answers=False)
    gate.leases_ended.assert_not_called()
    await reconciler.reconcile(engine_answers=True)
    gate.leases_ended.assert_called_once_with(["c"])
    assert "lease a: the engine's answer is invalid" in caplog.text
