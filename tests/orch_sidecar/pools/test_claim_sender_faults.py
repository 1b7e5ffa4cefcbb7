"""The engine's record of a claim follows the gate's, whatever is lost in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from orch_sidecar.admission.gate import Gate
from orch_sidecar.pools import claim_sender
from orch_sidecar.pools.claim_sender import ClaimSender
from tests.orch_sidecar.admission.examples import STALE, interactive, report
from tests.orch_sidecar.admission.gates import admit, cancelled, gate_of
from tests.patience import HANG_S
from vllm_plugin.contracts.lease_protocol import CLAIMS_PATH, Claim

# Other sidecars have all slots, and wait for more.
CONTENDED = report(8, foreign=8, sidecars=2, contended=True)


class Claims:
    """The part of an engine that takes claims. `holds`: its answers wait until it is set."""

    def __init__(self) -> None:
        self.taken: asyncio.Queue[int] = asyncio.Queue()
        self.holds = asyncio.Event()
        self.holds.set()
        self.fails = 0  # so many calls, from now on

    async def put(self, request: web.Request) -> web.Response:
        cost = (await request.json())["cost"]
        if self.fails:
            self.fails -= 1
            return web.Response(status=409)
        self.taken.put_nowait(cost)
        await self.holds.wait()
        return web.Response(status=204)

    async def next(self) -> int:
        return await asyncio.wait_for(self.taken.get(), HANG_S)


@pytest.fixture
async def engine() -> Claims:
    return Claims()


@pytest.fixture
async def gate() -> Gate:
    """Of a sidecar that shares its engine with another one."""
    gate = gate_of(8)
    gate.engine_reports(CONTENDED)
    return gate


@pytest.fixture
async def sender(
    engine: Claims, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ClaimSender]:
    monkeypatch.setattr(claim_sender, "REPEAT_S", 0.05)
    monkeypatch.setattr(claim_sender, "_RETRY_S", 0.01)
    app = web.Application()
    app.router.add_put(f"{CLAIMS_PATH}{gate.instance}", engine.put)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    async with aiohttp.ClientSession() as session:
        made = ClaimSender(session, f"http://{host}:{port}", {}, gate)
        task = asyncio.ensure_future(made.run())
        yield made
        task.cancel()
        await asyncio.wait([task])
    await runner.cleanup()


async def waiting(gate: Gate, cost: int = 1) -> asyncio.Task[Any]:
    task = asyncio.ensure_future(admit(gate, interactive(cost)))
    await asyncio.sleep(0)
    return task


async def test_claim_is_sent_and_withdrawn(engine: Claims, gate: Gate, sender: ClaimSender) -> None:
    request = await waiting(gate, cost=3)
    assert await engine.next() == 3
    request.cancel()
    assert await cancelled(request)
    while (cost := await engine.next()) == 3:
        pass  # it was sent again
    assert cost == 0


async def test_claim_that_the_engine_ended_while_it_was_being_sent_is_sent_again(
    engine: Claims, gate: Gate, sender: ClaimSender
) -> None:
    """Its offer has expired before the answer to the claim arrived: the report may be older than
    the claim, and no other will come."""
    engine.holds.clear()
    request = await waiting(gate)
    assert await engine.next() == 1
    sender.reported(None, False, 0)
    engine.holds.set()
    assert await engine.next() == 1
    request.cancel()
    assert await cancelled(request)


async def test_claim_that_ended_while_the_engine_was_unavailable_is_sent_again(
    engine: Claims, gate: Gate, sender: ClaimSender
) -> None:
    request = await waiting(gate)
    assert await engine.next() == 1
    gate.engine_unavailable(STALE)
    while await engine.next() != 0:
        pass
    gate.engine_reports(CONTENDED)
    assert await engine.next() == 1
    request.cancel()
    assert await cancelled(request)


async def test_claim_that_the_engine_does_not_take_is_sent_again(
    engine: Claims, gate: Gate, sender: ClaimSender, caplog: pytest.LogCaptureFixture
) -> None:
    """It is refused while the state stream is broken."""
    engine.fails = 3
    request = await waiting(gate)
    assert await engine.next() == 1
    assert engine.fails == 0
    assert caplog.text.count("the engine did not take a claim") == 1
    request.cancel()
    assert await cancelled(request)


async def test_report_of_another_claim_has_it_sent_again(
    engine: Claims, gate: Gate, sender: ClaimSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = await waiting(gate)
    assert await engine.next() == 1
    await asyncio.sleep(0.01)
    sender.reported(Claim(5, urgent=True), False, 0)
    assert await engine.next() == 1
    request.cancel()
    assert await cancelled(request)
