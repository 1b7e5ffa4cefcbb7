"""How often a reader of the state stream is sent changes, and what does not wait for that."""

from __future__ import annotations

import asyncio

from tests.patience import HANG_S
from tests.vllm_plugin.application import STREAM, Engine
from tests.vllm_plugin.examples import US, lease_of, report
from vllm_plugin.contracts import lease_protocol
from vllm_plugin.contracts.lease_protocol import Claim, ClaimCall


async def test_reader_that_asks_for_fewer_changes_gets_fewer(engine: Engine) -> None:
    call = engine.call("GET", f"{STREAM}&changes_every_ms=300")
    await call.status()
    await call.event_named("state")
    loop = asyncio.get_running_loop()
    began = loop.time()
    for running in (1, 2, 3):
        engine.engine_state.record(report(running))
        assert (await call.event_named("change"))["running"] == running
    assert loop.time() - began > 2 * 0.300
    await engine.stop(call)


async def test_interval_that_is_none_is_refused_with_the_rule(engine: Engine) -> None:
    call = engine.call("GET", f"{STREAM}&changes_every_ms=often")
    assert await call.status() == 400
    assert "must be an integer from 0 to 1000" in (await call.json())["error"]["message"]


async def test_end_and_offer_do_not_wait_for_the_interval_that_a_reader_asks_for(
    engine: Engine,
) -> None:
    key = engine.engine_state.enter(lease_of(US, cost=8))
    assert isinstance(key, int)
    call = engine.call("GET", f"{STREAM}&changes_every_ms=1000")
    await call.status()
    await call.event_named("state")
    ticks = 0

    async def tick() -> None:
        """Counts hundredths of a second; one in which the machine stands still counts once."""
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    engine.engine_state.record(report(1))  # a change, which waits for its turn
    engine.engine_state.claim(US, ClaimCall(Claim(2, urgent=True)))
    engine.engine_state.leave(key)
    assert await call.event() == ("ended", {"leases": [lease_of(US, cost=8)]})
    change = await call.event_named("change")
    assert change["leased"] == 0, "an offer is preceded by the slots"
    assert (await call.event_named("offer"))["cost"] == 2
    ticking.cancel()
    assert ticks < 80
    await engine.stop(call)


async def test_many_readers_together_get_no_more_changes_than_two(engine: Engine) -> None:
    calls = []
    for number in range(40):
        call = engine.call("GET", STREAM.replace(US, f"{number:016x}"))
        await call.status()
        await call.event_named("state")
        calls.append(call)
    loop = asyncio.get_running_loop()
    began, running, seen = loop.time(), 0, 0
    while loop.time() - began < 0.4:
        running = running % 7 + 1
        engine.engine_state.record(report(running))
        await asyncio.sleep(0.001)
    took_s = loop.time() - began
    engine.engine_state.record(report(8, 1))
    for call in calls:
        while (await call.event_named("change")).get("waiting") != 1:
            seen += 1
    interval_s = lease_protocol.changes_every_s(40)
    assert seen <= 40 * (took_s / interval_s + 2)
    engine.client.is_running = False
    await asyncio.wait_for(asyncio.gather(*(call.task for call in calls)), HANG_S)
